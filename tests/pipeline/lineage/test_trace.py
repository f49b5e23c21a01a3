"""`prep trace`: a row or a training step leads to the documents, files and lines it came from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.order import rows_of_samples
from pipeline.lineage.trace import trace_row, trace_step, trace_tokens
from pipeline.tokenizers.definition import load_definition, reference_tokenizer

SCHEDULE = [[1, 4], [11, 6]]
SEED = 9

REFERENCE = reference_tokenizer(load_definition("gpt2"))


@pytest.fixture(scope="module")
def texts(small_run: Any) -> dict[str, bytes]:
    """doc_key in hex -> cleaned text, from documents/."""
    tables = [
        pa.ipc.open_file(p).read_all()
        for p in sorted((small_run.directory / "documents").glob("*.arrow"))
    ]
    table = pa.concat_tables(tables)
    keys, found = table["doc_key"].to_pylist(), table["text"].to_pylist()
    return {k.hex(): t.encode() for k, t in zip(keys, found, strict=True)}


@pytest.fixture
def model_dir(small_run: Any, tmp_path: Path) -> Path:
    """What a training run leaves behind: enough of run.json to trace its steps."""
    params = small_run.json("hdf5/train/data_params.json")
    value = {
        "seed": SEED,
        "batch_size_schedule": SCHEDULE,
        "datasets": [{"from_step": 1, "dataset_hash": params["dataset_hash"]}],
    }
    (tmp_path / "run.json").write_text(json.dumps(value))
    for step in (50, 100):
        path = tmp_path / f"checkpoints/step_{step:07d}"
        path.mkdir(parents=True)
        (path / "manifest.json").write_text("{}")
    return tmp_path


def check(spans: list[Any], small_run: Any, texts: dict[str, bytes]) -> None:
    """Spans tile their row; their tokens spell the document; the raw line is that record."""
    records = {(f"{m.input}/{m.path}", m.line or m.ordinal): m for m in small_run.corpus.records}
    for span in spans:
        with h5py.File(small_run.directory / "hdf5" / span.file, "r") as file:
            ids = file["data"][span.row, 0, span.token_start : span.token_end]
        text = texts[span.document].decode()
        own = [*REFERENCE.encode(text, add_special_tokens=False).ids, 50256]
        begin = span.doc_token_start
        assert ids.tolist() == own[begin : begin + len(ids)]
        record = records[span.path, span.line]
        assert (record.source, record.licence) == (span.source, span.licence)
        assert record.kind == "mojibake" or span.decision in ("allow", "review")


def test_trace_row(small_run: Any, texts: dict[str, bytes]) -> None:
    shards = sorted((small_run.directory / "hdf5/train").glob("*.h5"))
    for shard in shards[:2]:
        relative = shard.relative_to(small_run.directory)
        for row in (0, 1, 7):
            spans = trace_row(small_run.directory, relative, row)
            assert spans == trace_row(small_run.directory, shard, row)
            assert [s.token_start for s in spans] == [0, *(s.token_end for s in spans[:-1])]
            assert {s.row for s in spans} == {row}
            check(spans, small_run, texts)


@pytest.mark.parametrize("step", [1, 2, 10, 11, 12, 57, 200])
def test_trace_step(small_run: Any, model_dir: Path, texts: dict[str, bytes], step: int) -> None:
    """The rows of the step by the order contract, in epoch 0 (file order) and later (permuted)."""
    spans = trace_step(small_run.directory, model_dir, step)
    files = small_run.json("hdf5/train/data_params.json")["files"]
    counts = [file["n_examples"] for file in files]
    rows = sum(counts)
    first = (step - 1) * 4 if step <= 11 else 40 + (step - 11) * 6
    size = 4 if step < 11 else 6
    if first + size <= rows:
        expected = list(range(first, first + size))
    else:
        expected = rows_of_samples(
            first, size, rows=rows, seed=SEED, file_order_first_epoch=True
        ).tolist()
    starts = np.cumsum([0, *counts])
    found = []
    for span in spans:
        index = int(span.file.removeprefix("train/examples_").removesuffix(".h5"))
        place = int(starts[index]) + span.row
        if place not in found:
            found.append(place)
    assert found == expected
    check(spans, small_run, texts)


def test_trace_tokens(small_run: Any) -> None:
    """Spans cut to the tokens asked for; each still begins with the token it says."""
    shard = Path("hdf5/train/examples_000000.h5")
    whole = trace_row(small_run.directory, shard, 3)
    with h5py.File(small_run.directory / shard, "r") as file:
        length = file["data"].shape[2]
    owner = {t: s for s in whole for t in range(s.token_start, s.token_end)}
    for first, stop in ((0, length), (5, 6), (17, 90), (length - 1, length)):
        spans = trace_tokens(small_run.directory, shard, first, stop, 3)
        assert [s.token_start for s in spans] == [first, *(s.token_end for s in spans[:-1])]
        assert spans[-1].token_end == stop
        for span in spans:
            full = owner[span.token_start]
            assert span.document == full.document
            shift = span.doc_token_start - full.doc_token_start
            assert shift == span.token_start - full.token_start
            inside = range(max(full.label_start, first), min(full.label_end, stop))
            assert (span.label_start, span.label_end) == (inside.start, inside.stop)
    for wrong in ((5, 5), (-1, 3), (0, length + 1)):
        with pytest.raises(InputError, match="are outside 0:"):
            trace_tokens(small_run.directory, shard, *wrong, 3)
    with pytest.raises(ConfigError, match="give one with --row"):
        trace_tokens(small_run.directory, shard, 0, 1)


def test_another_data_set_is_refused(small_run: Any, model_dir: Path) -> None:
    value = json.loads((model_dir / "run.json").read_bytes())
    value["datasets"] = [{"from_step": 1, "dataset_hash": "0" * 32}]
    (model_dir / "run.json").write_text(json.dumps(value))
    with pytest.raises(IntegrityError, match="was trained on data set 0000"):
        trace_step(small_run.directory, model_dir, 1)


def test_wrong_questions(small_run: Any, model_dir: Path, tmp_path: Path) -> None:
    shard = Path("hdf5/train/examples_000000.h5")
    with pytest.raises(ConfigError, match="expected 1 or more"):
        trace_step(small_run.directory, model_dir, 0)
    with pytest.raises(InputError, match=r"run\.json: cannot read"):
        trace_step(small_run.directory, tmp_path / "nowhere", 1)
    with pytest.raises(InputError, match="no such shard"):
        trace_row(small_run.directory, Path("hdf5/train/examples_999999.h5"), 0)
    with pytest.raises(InputError, match="outside 0"):
        trace_row(small_run.directory, shard, 10_000)
    with pytest.raises(InputError, match="outside 0"):
        trace_row(small_run.directory, shard, -1)


def test_command(small_run: Any, model_dir: Path, prep: Callable[..., Any]) -> None:
    shard = "hdf5/train/examples_000000.h5"
    ended = prep("trace", small_run.directory, "--file", shard, "--row", 3, "--json")
    assert ended.code == 0
    spans = json.loads(ended.out)
    traced = trace_row(small_run.directory, Path(shard), 3)
    assert all(s.parts == () for s in traced), "nothing was rearranged, so JSON says no more either"
    assert spans == [{k: v for k, v in vars(s).items() if k != "parts"} for s in traced]
    table = prep("trace", small_run.directory, "--file", shard, "--row", 3)
    assert table.code == 0
    for span in spans:
        assert f"{span['path']}:{span['line']}" in table.out and span["document"] in table.out
    steps = prep("trace", small_run.directory, "--train", model_dir, "--step", 2, "--json")
    assert json.loads(steps.out)[0]["row"] == 4
    assert prep("trace", small_run.directory, "--step", 2).code == 2
    tokens = prep("trace", small_run.directory, "--file", shard, "--row", 3, "--tokens", "0:9")
    assert tokens.code == 0 and "0-9" in tokens.out


def test_training_commands(small_run: Any, model_dir: Path, prep: Callable[..., Any]) -> None:
    """A checkpoint back to documents, one of these forward to its steps: they agree."""
    run = (small_run.directory, "--train", model_dir)
    back = json.loads(prep("trace", *run, "--checkpoint", "step_0000050", "--json").out)
    shown = prep("trace", *run, "--checkpoint", model_dir / "checkpoints/step_0000050")
    assert shown.code == 0 and "steps 1 to 50 read" in shown.out
    assert sum(source["documents"] for source in back["sources"]) == back["documents_total"]
    assert f"and {back['documents_total'] - 20:,} more" in shown.out
    document = back["documents"][4]
    ahead = json.loads(prep("trace", *run, "--document", document["document"], "--json").out)
    assert ahead["documents"][0]["first_step"] == ahead["exposure"]["steps"][0] <= 50
    assert ahead["exposure"]["first_exposed"]["step"] == 50
    assert ahead["exposure"]["last_unexposed"] is None
    text = prep("trace", *run, "--document", document["document"])
    for words in ("first checkpoint exposed", "last checkpoint not exposed: none",
                  "exposure, not influence or memorisation"):  # fmt: skip
        assert words in text.out
    assert "exposure, not influence or memorisation" in shown.out
    missing = prep("trace", *run, "--checkpoint", "step_0000051")
    assert missing.code == 3 and "committed there: step_0000050, step_0000100" in missing.err


def test_lineage_is_sorted(small_run: Any) -> None:
    for path in (small_run.directory / "hdf5").rglob("*.lineage.parquet"):
        table = pq.read_table(path)
        order = list(zip(table["row"].to_pylist(), table["token_start"].to_pylist(), strict=True))
        assert order == sorted(order)
