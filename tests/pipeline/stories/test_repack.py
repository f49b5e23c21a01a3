"""`prep repack`: the files `prep run` would have written, without reading or tokenizing a text."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.hashes import tree_hash
from pipeline.engine.runner import Runner
from pipeline.lineage.trace import trace_row, trace_tokens
from pipeline.stories.repack import RepackOptions, repack_run
from pipeline.stories.status import delete_intermediates, read_status
from pipeline.stories.verify import verify_run

SAME_FILES = (
    "ledger.json",
    "documents.parquet/000000.parquet",
    "sources.parquet",
    "tokenizer.json",
)
OVERRIDES = {
    "sample": ({"max_sequence_length": 48, "shard_sequences": 7},
               ("pack.max_sequence_length=48", "hdf5.shard_sequences=7")),
    "vsl": ({"format": "vsl", "packer": "greedy", "max_sequence_length": 32},
            ("pack.format=vsl", "pack.packer=greedy", "pack.max_sequence_length=32")),
    "corpus": ({"format": "corpus", "compression": "none"},
               ("pack.format=corpus", "hdf5.compression=none")),
}  # fmt: skip


def same_outputs(one: Path, other: Path) -> None:
    """Everything a reader of the data set may open."""
    assert tree_hash(one / "hdf5") == tree_hash(other / "hdf5")
    for name in SAME_FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.parametrize("name", OVERRIDES)
def test_equals_a_run_with_those_settings(small_run: Any, tmp_path: Path, name: str) -> None:
    changes, overrides = OVERRIDES[name]
    repack_run(small_run.directory, tmp_path / "packed", RepackOptions(**changes), 0)
    shutil.copytree(small_run.directory, tmp_path / "run")
    pipeline.run(small_run.corpus.config, tmp_path / "run", 0, overrides=overrides)
    same_outputs(tmp_path / "packed", tmp_path / "run")
    assert "lineage/train" in {check.name for check in verify_run(tmp_path / "packed")}


def test_without_changes_after_clean_up(small_run: Any, tmp_path: Path) -> None:
    """tokens/ and the tables are enough; the run itself is not touched."""
    shutil.copytree(small_run.directory, tmp_path / "run")
    delete_intermediates(tmp_path / "run")
    before = tree_hash(tmp_path / "run")
    repack_run(tmp_path / "run", tmp_path / "packed", workers=0)
    same_outputs(tmp_path / "packed", small_run.directory)
    assert tree_hash(tmp_path / "run") == before


def test_a_mixture_and_more_splits_stay(small_run: Any, tmp_path: Path) -> None:
    overrides = ("mixture.epochs={Wiki: 2.5}", "splits={test: 10 %}")
    run = pipeline.run(small_run.corpus.config, tmp_path / "run", 0, overrides=overrides)
    packed = repack_run(run.directory, tmp_path / "packed", workers=0).directory
    same_outputs(packed, run.directory)
    assert {p.name for p in (packed / "hdf5").iterdir()} == {"train", "validation", "test"}
    repack_run(run.directory, tmp_path / "vsl", RepackOptions(format="vsl"), 0)
    verify_run(tmp_path / "vsl")


def test_another_seed_is_another_order_of_the_same_documents(
    small_run: Any, tmp_path: Path
) -> None:
    packed = repack_run(small_run.directory, tmp_path / "p", RepackOptions(seed=99), 0).directory
    ledgers = [json.loads((d / "ledger.json").read_bytes()) for d in (packed, small_run.directory)]
    assert ledgers[0] == ledgers[1]
    assert tree_hash(packed / "hdf5") != tree_hash(small_run.directory / "hdf5")
    verify_run(packed)


def test_an_interrupted_repack_goes_on(
    small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = RepackOptions(format="vsl", max_sequence_length=64)
    whole = repack_run(small_run.directory, tmp_path / "whole", changes, 0).directory
    original, calls = Runner.run, []

    def stopped(self: Any, stage: Any) -> Any:
        calls.append(stage.name)
        if stage.name == "pack":
            raise KeyboardInterrupt
        return original(self, stage)

    monkeypatch.setattr(Runner, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        repack_run(small_run.directory, tmp_path / "again", changes, 0)
    monkeypatch.undo()
    manifest = repack_run(small_run.directory, tmp_path / "again", changes, 0)
    assert manifest.reused == tuple(calls[:-1])
    assert tree_hash(tmp_path / "again") == tree_hash(whole)
    (tmp_path / "again/hdf5/train/examples_000000.h5").unlink()
    repack_run(small_run.directory, tmp_path / "again", changes, 0)
    assert tree_hash(tmp_path / "again") == tree_hash(whole)


@pytest.mark.slow
def test_workers_change_no_byte(small_run: Any, tmp_path: Path) -> None:
    changes = RepackOptions(format="vsl")
    one = repack_run(small_run.directory, tmp_path / "one", changes, 0).directory
    two = repack_run(small_run.directory, tmp_path / "two", changes, 2).directory
    assert tree_hash(one) == tree_hash(two)


def test_trace_and_the_command(small_run: Any, tmp_path: Path, prep: Callable[..., Any]) -> None:
    out = tmp_path / "vsl"
    made = prep("repack", small_run.directory, "--out", out, "--format", "vsl", "--workers", 0)
    assert made.code == 0, made.err
    assert "train: 170 documents" in made.out and "padding (" in made.out
    assert prep("verify", out).code == 0
    shard = "hdf5/train/examples_000000.h5"
    rows = [trace_row(out, Path(shard), row) for row in range(10)]
    for spans in rows:
        assert [s.token_start for s in spans] == [0, *(s.token_end for s in spans[:-1])]
    assert max(len({s.document for s in spans}) for spans in rows) > 1
    with pytest.raises(ConfigError, match="give one with --row"):
        trace_tokens(out, Path(shard), 2, 3)
    finished, stages = read_status(out)
    assert finished and {s.state for s in stages} == {"done"}
    delete_intermediates(out)
    assert prep("verify", out).code == 0
    again = prep("repack", small_run.directory, "--out", out, "--format", "vsl", "--workers", 0,
                 "--json")  # fmt: skip
    assert "pack" in json.loads(again.out)["reused"]


def test_trace_of_a_corpus(small_run: Any, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """Token t of the shard is token t - start of the document that is named."""
    out = repack_run(
        small_run.directory, tmp_path / "c", RepackOptions(format="corpus"), 0
    ).directory
    shard = Path("hdf5/train/examples_000000.h5")
    (span,) = trace_tokens(out, shard, 5000, 5001)
    assert span.token_start <= 5000 < span.token_end and span.row is None
    documents = pq.read_table(out / "documents.parquet").to_pylist()
    (document,) = [d for d in documents if d["doc_key"].hex() == span.document]
    assert span.token_end - span.token_start + span.doc_token_start <= document["tokens"]
    shown = prep("trace", out, "--file", shard, "--tokens", 5000)
    assert shown.code == 0 and span.document in shown.out
    for wrong in (-1, 10**9):
        with pytest.raises(InputError, match="outside 0"):
            trace_tokens(out, shard, wrong, wrong + 1)
    with pytest.raises(ConfigError, match="--tokens"):
        trace_row(out, shard, 0)


def test_wrong_runs_and_places(small_run: Any, tmp_path: Path) -> None:
    run = small_run.directory
    with pytest.raises(InputError, match="no such run directory"):
        repack_run(tmp_path / "nowhere", tmp_path / "out", workers=0)
    for out in (run, run / "inside", run.parent):
        with pytest.raises(ConfigError, match="apart from the run"):
            repack_run(run, out, workers=0)
    shutil.copytree(run, tmp_path / "run")
    with pytest.raises(ConfigError, match="holds another run"):
        repack_run(run, tmp_path / "run", workers=0)
    shutil.rmtree(tmp_path / "run/tokens")
    with pytest.raises(InputError, match=r"tokens/000000\.arrow is missing"):
        repack_run(tmp_path / "run", tmp_path / "out", workers=0)
    packed = repack_run(
        run, tmp_path / "packed", RepackOptions(max_sequence_length=64), 0
    ).directory
    with pytest.raises(InputError, match=r"made by `prep repack`; expected a run of `prep run`"):
        repack_run(packed, tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists(), "nothing is written before the checks"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_sequence_length": 1}, r"--msl 1: expected greater than or equal to 2"),
        ({"format": "rows"}, r"--format rows: expected 'sample', 'vsl' or 'corpus'"),
        (
            {"packer": "greedy"},
            r"--packer greedy: expected no packer: there is none to choose with format sample",
        ),
        ({"format": "vsl", "packer": "best"}, r"--packer best: expected 'first_fit' or 'greedy'"),
        ({"seed": -1}, r"--seed -1: expected greater than or equal to 0"),
        ({"compression": "zip"}, r"--compression zip: expected 'gzip'"),
        ({"shard_bytes": 12}, r"--shard-bytes 12: expected greater than or equal to 1024"),
        ({"format": "corpus", "shard_sequences": 5}, r"--shard-sequences 5: expected no shard_seq"),
        ({"shard_sequences": 10**9}, r"--shard-sequences 1000000000: expected shard_sequences of"),
    ],
)
def test_wrong_options(
    small_run: Any, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        repack_run(small_run.directory, tmp_path / "out", RepackOptions(**changes), 0)
    assert not (tmp_path / "out").exists()


def test_training_says_which_format_it_needs(small_run: Any, tmp_path: Path) -> None:
    from trainer.config import ModelConfig
    from trainer.data import open_checked

    out = repack_run(small_run.directory, tmp_path / "v", RepackOptions(format="vsl"), 0).directory
    model = ModelConfig(vocab_size=50257, max_position_embeddings=128, hidden_size=8,
                        num_hidden_layers=1, num_heads=1, filter_size=8)  # fmt: skip
    with pytest.raises(ConfigError, match="format vsl, but training needs sample"):
        open_checked(out / "hdf5/train", model)
