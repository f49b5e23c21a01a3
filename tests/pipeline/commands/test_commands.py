"""The `prep` command: what it prints, its exit codes, its JSON, and the defaults."""

import datetime
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.hashes import files_below, hash_file, tree_hash
from pipeline.core.words import format_bytes
from pipeline.runs.catalogue import INTERMEDIATE_DIRECTORIES
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork
from tests.stages import stages_by_default

PREP = Path(sys.executable).with_name("prep")


@pytest.fixture
def own_run(small_run: Any, tmp_path: Path) -> Path:
    """A copy of the small run that a test may change."""
    shutil.copytree(small_run.directory, tmp_path / "run")
    return tmp_path / "run"


def test_help_shows_examples(prep: Callable[..., Any]) -> None:
    assert "Prepare pre-training data" in prep("--help").out
    for command in ("run", "plan", "status", "verify", "trace", "clean-up"):
        shown = prep(command, "--help")
        assert shown.code == 0 and f"prep {command}" in shown.out and "Example" in shown.out


def test_default_output_is_runs_name(
    corpus: Any, tmp_path: Path, prep: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """./runs/NAME below the working directory; the closing table; a second run reuses it all."""
    monkeypatch.chdir(tmp_path)
    first = prep("run", corpus.config, "--workers", 0)
    assert first.code == 0, first.err
    assert {p.name for p in tmp_path.iterdir()} == {"runs"}
    assert (tmp_path / "runs/tiny/manifest.json").is_file()
    for words in ("documents by source", "Books3", "train: 170 documents", "ledger: balanced"):
        assert words in first.out
    assert "outputs: runs/tiny/" in first.out
    before = tree_hash(tmp_path / "runs/tiny")
    second = prep("run", corpus.config, "--workers", 0)
    assert "everything was up to date" in second.out
    assert tree_hash(tmp_path / "runs/tiny") == before


def test_run_json(small_run: Any, own_run: Path, prep: Callable[..., Any]) -> None:
    ended = prep("run", small_run.corpus.config, "--out", own_run, "--workers", 0, "--json")
    value = json.loads(ended.out)
    assert value["directory"] == str(own_run)
    assert value["reused"] == list(small_run.manifest.stages)
    assert value["ledger"] == small_run.json("ledger.json")


def test_set_rebuilds_what_depends_on_it(
    small_run: Any, own_run: Path, prep: Callable[..., Any]
) -> None:
    """Another MSL: everything up to the stream is reused, the rows are new, and it is said so."""
    options = ("--out", own_run, "--workers", 0, "--set", "pack.max_sequence_length=64")
    ended = prep("run", small_run.corpus.config, *options, "--json")
    assert ended.code == 0, ended.err
    value = json.loads(ended.out)
    reused = set(value["reused"])
    assert {"clean", "signatures", "bands", "screen", "keep", "tokenize", "gather",
            "documents"} <= reused  # fmt: skip
    assert not reused & {"pack", "params", "account", "report"}
    assert value["ledger"]["splits"]["train"]["max_sequence_length"] == 64
    assert "max_sequence_length" in ended.err + ended.out
    verify_run(own_run)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("pack.max_sequence_lenght=64", "did you mean 'max_sequence_length'"),
        ("pack.max_sequence_length=1", "pack.max_sequence_length"),
        ("read.max_bad_share=2", "read.max_bad_share"),
        ("nonsense", "expected dotted.key=value"),
        ("inputs.7.path=x", "there is no item 7 of"),
    ],
)
def test_bad_settings(
    setting: str, message: str, corpus: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    ended = prep("run", corpus.config, "--out", tmp_path / "run", "--set", setting)
    assert ended.code == 2 and len(ended.err.splitlines()) == 1
    assert message in ended.err
    assert list(tmp_path.iterdir()) == []


def test_exit_codes(corpus: Any, tmp_path: Path, prep: Callable[..., Any]) -> None:
    nothing = prep("run", corpus.config, "--out", tmp_path / "a", "--set", "inputs.0.path=nowhere")
    assert nothing.code == 3 and "nowhere: found nothing that ends in" in nothing.err
    none_left = prep("run", corpus.config, "--out", tmp_path / "b", "--workers", 0,
                     "--set", "clean.min_length=100000")  # fmt: skip
    assert none_left.code == 3 and "no document is left" in none_left.err
    too_bad = prep("run", corpus.config, "--out", tmp_path / "c", "--workers", 0,
                   "--set", "read.max_bad_share=0.1 %")  # fmt: skip
    assert too_bad.code == 3 and "8 of 205 records are bad" in too_bad.err
    assert prep("verify", tmp_path / "a").code == 4
    assert prep("status", tmp_path / "nowhere").code == 3
    assert prep("run", "no-such-config").code == 2
    assert prep("frobnicate").code == 2
    for name in "abc":
        assert not (tmp_path / name / "manifest.json").exists()


def test_plan(small_run: Any, own_run: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    """Writes nothing, says what is committed."""
    config = small_run.corpus.config
    new = ("plan", config, "--out", tmp_path / "fresh", "--set", "read.task_bytes=40000")
    stages = json.loads(prep(*new, "--json").out)
    assert {s["state"] for s in stages} == {"run"}
    assert not (tmp_path / "fresh").exists()
    first, *others = stages_by_default()
    expected = [first, "pieces", *others]  # one shard is larger than a task
    assert [s["stage"] for s in stages] == expected
    assert list(small_run.manifest.stages) == [first, *others]
    done = json.loads(prep("plan", config, "--out", own_run, "--json").out)
    assert {s["state"] for s in done} == {"reuse"}
    options = ("--out", own_run, "--set", "pack.max_sequence_length=64", "--json")
    changed = {s["stage"]: s["state"] for s in json.loads(prep("plan", config, *options).out)}
    assert changed["gather"] == "reuse" and changed["pack"] == "run if its inputs change"
    assert changed["rows"].startswith("run: changed") and "max_seq" in changed["rows"]
    shown = prep(*new)
    assert "5 raw shards" in shown.out and "run" in shown.out
    disk = format_bytes(sum(s["disk_bytes"] for s in stages))
    kept = [s["disk_bytes"] for s in stages if s["stage"] in ("clean", "tokenize", "pack")]
    memory = format_bytes(max(s["memory_bytes"] for s in stages))
    assert shown.out.splitlines()[-1] == (
        f"in all about 0.0s with one process, {memory} of memory, {disk} of disk "
        f"({format_bytes(sum(kept))} after prep clean-up)"
    )
    assert " 0 B of disk" in prep("plan", config, "--out", own_run).out.splitlines()[-1]
    dry = prep("run", *new[1:], "--dry-run")
    assert dry.out == shown.out and not (tmp_path / "fresh").exists()


def test_status(small_run: Any, own_run: Path, prep: Callable[..., Any]) -> None:
    value = json.loads(prep("status", own_run, "--json").out)
    assert value["finished"] and {s["state"] for s in value["stages"]} == {"done"}
    (own_run / "manifest.json").unlink()
    (own_run / "manifests/pack.json").unlink()
    value = json.loads(prep("status", own_run, "--json").out)
    states = {s["stage"]: s["state"] for s in value["stages"]}
    assert not value["finished"] and states["pack"] == "not started" and states["clean"] == "done"
    assert "not finished" in prep("status", own_run).out


def test_status_says_who_works_and_how_far(
    small_run: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """Of a live run that waits in the third of its texts, and after it was killed there."""
    out = tmp_path / "run"
    fault = "task.start.tokenize@3=sleep:60"
    run = subprocess.Popen(
        [PREP, "run", small_run.corpus.config, "--out", out, "--workers", "0"],
        env={**os.environ, "WAFERMILL_FAILPOINT": fault}, stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    tasks = len(small_run.manifest.stages["tokenize"].tasks)
    try:
        deadline = time.monotonic() + 120
        while len(list((out / "journal/records/tokenize").glob("*.json"))) < 2:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        live = prep("status", out).out
    finally:
        run.kill()
        run.wait()
    assert f"tokenize: 2 of {tasks} tasks done, " in live and " documents; last progress" in live
    who = f"pid {run.pid} on {socket.gethostname()} since {datetime.date.today().year}"
    assert f"not finished; {who}" in live and "is working on it" in live
    work = json.loads(prep("status", out, "--json").out)["work"]
    assert (work["is_held"], work["stage"], work["done"]) == (False, "tokenize", 2)
    assert work["documents"] > 0 and 0 <= work["idle_seconds"] < 120
    assert f"no process is working on it (last: {who}" in prep("status", out).out
    assert prep("run", small_run.corpus.config, "--out", out, "--workers", 0).code == 0
    assert prep("status", out).out.endswith("finished\n")


def test_version_and_completion(
    small_run: Any, corpus: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """What a shell asks for: commands, shipped configs, and run directories one level down."""
    assert prep("--version").out == f"wafermill {version('wafermill')}\n"
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/mine").symlink_to(small_run.directory)
    (tmp_path / "other").mkdir()

    def completed(words: str, position: int) -> list[str]:
        asked = {"_PREP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
        environment = {**os.environ, **{name: str(value) for name, value in asked.items()}}
        done = subprocess.run(
            [PREP], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("prep ver", 1) == ["verify"]
    assert completed("prep run qui", 2) == ["quickstart"]
    assert completed("prep status ", 2) == ["runs/mine"]
    assert completed("prep explain runs/m", 2) == ["runs/mine"]


def test_verify(small_run: Any, prep: Callable[..., Any]) -> None:
    checks = json.loads(prep("verify", small_run.directory, "--json").out)
    assert [c["name"] for c in checks] == [
        "hashes", "events", "ledger", "splits", "hdf5/train", "lineage/train", "inverse/train",
        "hdf5/validation", "lineage/validation", "inverse/validation",
    ]  # fmt: skip
    shown = prep("verify", small_run.directory)
    assert shown.code == 0 and shown.out.count("ok  ") == len(checks)


def test_one_flipped_bit_in_any_file_is_found_and_named(
    small_run: Any, own_run: Path, prep: Callable[..., Any]
) -> None:
    for relative in files_below(small_run.directory):
        path = own_run / relative
        good = path.read_bytes()
        if not good:
            continue
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 0x10
        path.write_bytes(bad)
        with pytest.raises(IntegrityError) as found:
            verify_run(own_run)
        assert str(path) in str(found.value)
        path.write_bytes(good)
    verify_run(own_run)
    stray = own_run / "tokens/stray.arrow"
    stray.write_bytes(b"x")
    ended = prep("verify", own_run)
    assert ended.code == 4 and "stray.arrow: not in the manifest" in ended.err


def test_missing_file_is_found_and_rebuilt(small_run: Any, own_run: Path) -> None:
    before = tree_hash(own_run)
    for relative in (
        "hdf5/train/examples_000001.h5",
        "documents.parquet/000000.parquet",
        "tokens/000002.arrow",
    ):
        (own_run / relative).unlink()
        with pytest.raises(IntegrityError, match=relative):
            verify_run(own_run)
        pipeline.run(small_run.corpus.config, own_run, 0)
        assert tree_hash(own_run) == before


def test_changed_input_is_read_again(
    make_corpus: Callable[..., Any], tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """Also one that hides behind equal size and modification time."""
    corpus = make_corpus(tmp_path / "corpus")
    options = ("run", corpus.config, "--out", tmp_path / "run", "--workers", 0)
    assert prep(*options).code == 0
    raw = corpus.root / "raw/web/a.jsonl"
    status = raw.stat()
    raw.write_bytes(raw.read_bytes().replace(b"amber", b"AMBER"))
    os.utime(raw, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "everything was up to date" not in prep(*options).out
    assert "everything was up to date" in prep(*options, "--verify-inputs").out
    pipeline.run(corpus.config, tmp_path / "fresh", 0)
    assert tree_hash(tmp_path / "run") == tree_hash(tmp_path / "fresh")
    assert "everything was up to date" in prep(*options).out
    raw.write_bytes(raw.read_bytes().replace(b"AMBER", b"Amber"))
    assert "everything was up to date" not in prep(*options).out
    pipeline.run(corpus.config, tmp_path / "fresh", 0)
    assert tree_hash(tmp_path / "run") == tree_hash(tmp_path / "fresh")


def test_clean_up(small_run: Any, own_run: Path, prep: Callable[..., Any]) -> None:
    """Intermediates go, outputs stay, verify and trace still work, and the next run reuses."""
    config = small_run.corpus.config
    outputs = {p: hash_file(own_run / p) for p in files_below(own_run)
               if p.parts[0] not in INTERMEDIATE_DIRECTORIES
               and p.name != "manifest.json"}  # fmt: skip
    intermediate = [n for n in INTERMEDIATE_DIRECTORIES if (own_run / n).exists()]
    ended = prep("clean-up", own_run)
    assert ended.code == 0 and "freed" in ended.out
    assert {"signatures", "runs", "keep"} < set(intermediate)
    for name in intermediate:
        assert name in ended.out and not (own_run / name).exists()
    assert {p: hash_file(own_run / p) for p in outputs} == outputs
    shown = prep("verify", own_run)
    assert shown.code == 0 and "removed by clean-up" in shown.out
    shard = "hdf5/train/examples_000000.h5"
    assert prep("trace", own_run, "--file", shard, "--row", 0).code == 0
    again = prep("run", config, "--out", own_run, "--workers", 0)
    assert "everything was up to date" in again.out
    assert not (own_run / INTERMEDIATE_DIRECTORIES[0]).exists()
    assert prep("clean-up", own_run).code == 0
    verify_run(own_run)


def test_change_after_clean_up_rebuilds(small_run: Any, own_run: Path, tmp_path: Path) -> None:
    """A changed setting brings back what it needs, and ends where a fresh run ends."""
    from pipeline.stories.status import delete_intermediates

    delete_intermediates(own_run)
    overrides = ("pack.max_sequence_length=64",)
    pipeline.run(small_run.corpus.config, own_run, 0, overrides=overrides)
    verify_run(own_run)
    pipeline.run(small_run.corpus.config, tmp_path / "fresh", 0, overrides=overrides)
    for name in ("ledger.json", "hdf5/train/data_params.json", "documents.parquet/000000.parquet"):
        assert (own_run / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()


def test_clean_up_of_an_unfinished_run_is_refused(own_run: Path) -> None:
    from pipeline.stories.status import delete_intermediates

    (own_run / "manifest.json").unlink()
    with pytest.raises(InputError, match="not a finished run"):
        delete_intermediates(own_run)


def test_as_a_process(corpus: Any, tmp_path: Path, prep_process: Callable[..., Any]) -> None:
    """Relative paths of the config resolve against its file; without a terminal, plain lines."""
    ended = prep_process("run", corpus.config, "--workers", 0, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "\x1b" not in ended.out + ended.err
    assert "ledger: balanced" in ended.out
    value = json.loads(prep_in_fork("status", "runs/tiny", "--json", cwd=tmp_path).out)
    assert value["finished"]


def test_a_shard_that_is_left_out_is_named(tmp_path: Path) -> None:
    """However often the run is asked for; and bad records are counted by reason."""
    (tmp_path / "bad.jsonl").write_text('{"text": 3}\nno json\n')
    text = "A sentence of eight words, for one document. " * 9
    (tmp_path / "good.jsonl").write_text(json.dumps({"text": text}) + "\n")
    command = ("clean", tmp_path, "--out", tmp_path / "out", "--workers", 0)
    refused = prep_in_fork(*command)
    assert refused.code == 3
    assert "1 text_not_string" in refused.err and "1 bad_json" in refused.err
    assert ", the first at bad.jsonl:1; drops/ lists all" in refused.err
    (tmp_path / "c.yaml").write_text(
        f"inputs: [{{name: a, path: {tmp_path}/*.jsonl}}]\n"
        "read: {on_bad_record: fail, on_bad_shard: skip}\n"
    )
    for _ in range(2):
        done = prep_in_fork("run", tmp_path / "c.yaml", "--out", tmp_path / "run", "--workers", 0)
        assert done.code == 0, done.err
        assert (
            "note: a: bad.jsonl was left out: bad.jsonl:1: bad record: text_not_string" in done.err
        )
