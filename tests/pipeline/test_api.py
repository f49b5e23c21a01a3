"""The public functions of `pipeline` do what the commands do, and errors are the project's own."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

import pipeline
import trainer
from pipeline.api import preparing
from pipeline.commands import dedup as command
from pipeline.core.errors import ConfigError, InputError
from pipeline.lineage.checkpoint_trace import CheckpointTrace
from pipeline.lineage.exposure import ForwardTrace
from pipeline.lineage.trace import TokenSpan
from tests.pipeline.trees import differences

Prep = Callable[..., Any]
SHARD = "hdf5/train/examples_000000.h5"
PARAMS = {
    "train_input": {"batch_size": 4, "micro_batch_size": 2},
    "model": {
        "vocab_size": 50257, "max_position_embeddings": 128, "hidden_size": 8,
        "num_hidden_layers": 1, "num_heads": 2, "filter_size": 16,
    },
    "optimizer": {"learning_rate": 0.01},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(small_run: Any) -> pipeline.FinishedRun:
    return pipeline.open_run(str(small_run.directory))


@pytest.fixture(scope="module")
def model_dir(run: pipeline.FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained for three steps on the run."""
    out = tmp_path_factory.mktemp("trained") / "model"
    trainer.train(params=PARAMS, data=run, model_dir=out, num_steps=3)
    return out


def printed(prep: Prep, *arguments: object) -> Any:
    """What a command prints as JSON."""
    ended = prep(*arguments, "--json")
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def plain(found: object) -> Any:
    """A value as JSON has it."""
    return json.loads(json.dumps(found, default=_plain))


def _plain(found: Any) -> Any:
    if isinstance(found, pa.Table):
        return found.to_pylist()
    if isinstance(found, Path):
        return str(found)
    about = vars(found)
    if about.get("parts") == ():  # nothing was rearranged, which JSON does not mention
        return {name: value for name, value in about.items() if name != "parts"}
    return about


def test_plan_and_the_four_forms_of_a_config(
    small_run: Any, prep: Prep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A path, a mapping, a Config and a run of them are one and the same."""
    config, out = small_run.corpus.config, small_run.directory
    value = yaml.safe_load(config.read_text())
    monkeypatch.chdir(config.parent)
    plan = pipeline.plan(config, tmp_path / "new")
    assert [vars(stage) for stage in plan.stages] == printed(
        prep, "plan", config, "--out", tmp_path / "new"
    )
    assert plan.directory == tmp_path / "new" and not plan.directory.exists()
    assert plan.total.disk_bytes == sum(stage.disk_bytes for stage in plan.stages)
    value["inputs"][0]["path"] = Path(value["inputs"][0]["path"])
    parsed = pipeline.Config.model_validate_json(json.dumps(value, default=str))
    for form in (str(config), value, parsed):
        assert {stage.state for stage in pipeline.plan(form, out).stages} == {"reuse"}
        changed = pipeline.plan(form, out, overrides=["seed=8"])
        assert "run: changed" in " ".join(stage.state for stage in changed.stages)
    manifest = pipeline.run(value, out, workers=0)
    assert manifest.directory == out and set(manifest.reused) == set(manifest.stages)


def test_verify(run: pipeline.FinishedRun, prep: Prep, capsys: Any) -> None:
    expected = printed(prep, "verify", run.directory, "--lineage", 5)
    assert [vars(check) for check in pipeline.verify(run, lineage=5)] == expected
    assert run.verify() == pipeline.verify(run.directory)
    assert capsys.readouterr() == ("", "")


def test_trace_backwards(run: pipeline.FinishedRun, model_dir: Path, prep: Prep) -> None:
    where = run.directory
    spans = pipeline.trace(where, file=f"{where}/{SHARD}", row=3)
    assert all(isinstance(span, TokenSpan) for span in spans)
    assert plain(spans) == printed(prep, "trace", where, "--file", where / SHARD, "--row", 3)
    assert run.trace(file=f"{SHARD}[3]") == spans
    expected = printed(prep, "trace", where, "--file", where / SHARD, "--row", 3, "--tokens", "5:9")
    assert plain(run.trace(file=SHARD, row=3, tokens=(5, 9))) == expected
    expected = printed(prep, "trace", where, "--train", model_dir, "--step", 2)
    assert plain(run.trace(step=2, train=model_dir)) == expected
    found = run.trace(checkpoint="step_0000003", train=model_dir)
    assert isinstance(found, CheckpointTrace)
    expected = printed(prep, "trace", where, "--train", model_dir, "--checkpoint", "step_0000003")
    for name in ("rows", "labels_read", "sources", "documents", "checkpoint", "elsewhere"):
        assert plain(getattr(found, name)) == expected[name]


def test_trace_forwards(
    run: pipeline.FinishedRun, model_dir: Path, prep: Prep, tmp_path: Path
) -> None:
    key, text = next(run.texts("train"))
    (tmp_path / "text").write_text(text)
    questions = [
        ({"document": key, "train": model_dir}, ("--document", key, "--train", model_dir)),
        ({"text": text}, ("--text", tmp_path / "text")),
        ({"work": "c0ffee00c0de"}, ("--work", "c0ffee00c0de")),
    ]
    for asked, options in questions:
        found = run.trace(**asked)
        assert isinstance(found, ForwardTrace)
        expected = printed(prep, "trace", run.directory, *options)
        assert plain(found.documents) == expected["documents"]
        assert plain(found.splits) == expected["splits"]
        assert found.places.to_pylist() == expected["places"]
        assert list(found.notes) == expected["notes"]
        if found.exposure is not None:
            assert list(found.exposure.steps) == expected["exposure"]["steps"]
    assert len(pipeline.trace(run, document=key).documents) == 1


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({}, "expected one of step, checkpoint, .*; got none"),
        ({"document": "ab", "text": "x"}, "got document, text"),
        ({"step": 1}, "step needs train"),
        ({"document": "abcdef", "row": 1}, "row and tokens need file"),
        ({"file": SHARD}, "file needs row, or tokens"),
        ({"document": "abcdef", "train": "s3://bucket/x"}, "a URL"),
    ],
)
def test_questions_that_are_refused(
    run: pipeline.FinishedRun, question: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run.trace(**question)


def test_search(run: pipeline.FinishedRun, model_dir: Path, prep: Prep) -> None:
    _, text = next(run.texts())
    words = " ".join(text.split()[3:11])
    found = run.search(words, train=model_dir)
    expected = printed(prep, "search", run.directory, words, "--train", model_dir)
    assert found.total == expected["documents_total"] > 0
    assert [d.traced.document for d in found.documents] == [
        d["document"] for d in expected["documents"]
    ]
    for mine, theirs in zip(found.documents, expected["documents"], strict=True):
        assert list(mine.rows) == theirs["in_rows"]
        assert list(mine.steps) == theirs["read_at_steps"]
        assert [asdict(place) for place in mine.text.places] == theirs["places"]
    assert pipeline.search(run, words, limit=0).documents == ()
    with pytest.raises(InputError, match="expected WORDS to look for"):
        pipeline.search(run, " ")
    with pytest.raises(ConfigError, match="limit -1"):
        pipeline.search(run, words, limit=-1)


def test_a_finished_run(run: pipeline.FinishedRun, small_run: Any, prep: Prep) -> None:
    table = run.documents(["doc_key", "state", "split"])
    assert table.column_names == ["doc_key", "state", "split"]
    assert run.documents().equals(small_run.table("documents.parquet"))
    assert run.sources().equals(small_run.table("sources.parquet"))
    assert run.evidence().equals(small_run.table("evidence.parquet"))
    assert run.decisions(["rule"]).column_names == ["rule"]
    assert run.ledger.as_dict() == small_run.json("ledger.json")
    assert run.manifest["story"] == "prepare"
    assert run.splits == ("train", "validation")
    assert len(run.split("train")) == small_run.json("hdf5/train/data_params.json")["n_examples"]
    assert run.split("validation", labels="hf")[0]["labels"].dtype == "int64"
    kept = table.filter(pc.equal(table["state"], "kept"))
    assert [key for key, _ in run.texts()] == [k.hex() for k in kept["doc_key"].to_pylist()]
    held_out = kept.filter(pc.equal(kept["split"], "validation"))["doc_key"].to_pylist()
    assert [key for key, _ in run.texts("validation")] == [key.hex() for key in held_out]
    documents = [
        pa.ipc.open_file(path).read_all()
        for path in sorted((small_run.directory / "documents").glob("*.arrow"))
    ]
    texts = pa.concat_tables(documents).select(["doc_key", "text"]).to_pylist()
    by_key = {row["doc_key"].hex(): row["text"] for row in texts}
    assert all(by_key[key] == text for key, text in run.texts())


def test_a_document_is_explained(run: pipeline.FinishedRun, prep: Prep) -> None:
    table = run.documents(["doc_key", "state"])
    key = table.filter(pc.equal(table["state"], "duplicate"))["doc_key"][0].as_py().hex()
    found = run.explain(key)
    expected = printed(prep, "explain", run.directory, key)
    assert found.kept_by is not None
    assert found.kept_by.key == expected["kept_by"]["key"]
    with pytest.raises(InputError, match="no such document"):
        run.explain("abcdef123456")


def test_what_is_not_in_a_run(run: pipeline.FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column colour; expected doc_key"):
        run.documents(["colour"])
    with pytest.raises(InputError, match="no split test; expected one of: train, validation"):
        run.split("test")
    with pytest.raises(InputError, match="no such run directory"):
        pipeline.open_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="not a finished run"):
        pipeline.open_run(tmp_path)
    with pytest.raises(ConfigError, match="a URL"):
        pipeline.open_run("https://host/run")


def test_dedup(small_run: Any, prep: Prep, tmp_path: Path, capsys: Any) -> None:
    raw = small_run.corpus.root / "raw" / "web"
    options = ("--workers", 0, "--max-bad-share", "10 %")
    assert prep("dedup", raw, "--out", tmp_path / "command", *options).code == 0
    made = pipeline.dedup(raw, out=tmp_path / "api", workers=0, max_bad_share=0.1)
    assert made.directory == tmp_path / "api"
    assert differences(tmp_path / "command" / "records", tmp_path / "api" / "records") == []
    done = pipeline.open_run(made.directory)
    assert done.splits == () and len(done.documents()) > 100
    with pytest.raises(InputError, match="no such table"):
        done.decisions()
    assert capsys.readouterr() == ("", "")
    assert preparing.get_args(preparing.DedupPreset) == command.PRESETS


def test_clean(small_run: Any, prep: Prep, tmp_path: Path) -> None:
    raw = small_run.corpus.root / "raw"
    options = ("--mask", "email,ip", "--format", "jsonl", "--workers", 0, "--gopher-repetition")
    lenient = "read.max_bad_share=10 %"
    ended = prep("clean", raw, "--out", tmp_path / "command", *options, "--set", lenient)
    assert ended.code == 0, ended.err
    made = pipeline.clean(
        [raw], out=tmp_path / "api", mask=["email", "ip"], format="jsonl", workers=0,
        gopher_repetition=True, overrides=[lenient],
    )  # fmt: skip
    assert differences(tmp_path / "command" / "cleaned", made.directory / "cleaned") == []
    config = yaml.safe_load(small_run.corpus.config.read_text())
    config["inputs"] = [{"name": "files", "path": str(raw)}]
    again = pipeline.clean(
        config=config, out=tmp_path / "api", mask="email,ip", format="jsonl", workers=0,
        gopher_repetition=True, overrides=[lenient, "read.task_bytes=64 MiB"],
    )  # fmt: skip
    assert "clean" in again.reused


def test_options_that_are_refused(small_run: Any, tmp_path: Path) -> None:
    raw = small_run.corpus.root / "raw"
    with pytest.raises(ConfigError, match="preset none: expected one of"):
        pipeline.dedup(raw, out=tmp_path, preset="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^dedup: threshold: expected .*got 2"):
        pipeline.dedup(raw, out=tmp_path, threshold=2)
    with pytest.raises(ConfigError, match="name: "):
        pipeline.dedup(raw, out=tmp_path, name="a b")
    with pytest.raises(ConfigError, match="format"):
        pipeline.clean(raw, out=tmp_path, format="csv")
    with pytest.raises(ConfigError, match="nothing to clean"):
        pipeline.clean(out=tmp_path)
    with pytest.raises(ConfigError, match=r"^config: sede: unknown key; did you mean.*seed"):
        pipeline.plan({"name": "x", "sede": 1, "inputs": [{"name": "a", "path": raw}]})
    with pytest.raises(ConfigError, match="found set; expected values as a YAML file has them"):
        pipeline.plan({"name": "x", "inputs": {1, 2}})
    with pytest.raises(ConfigError, match="no such config"):
        pipeline.plan(tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match="lineage 0"):
        pipeline.verify(tmp_path, lineage=0)
    assert list(tmp_path.iterdir()) == []
