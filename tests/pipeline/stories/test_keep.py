"""`keep`: what is deleted of a run, and when."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import files_below, hash_file
from pipeline.engine.progress import Progress
from pipeline.engine.runner import RemovedInputError
from pipeline.runs.catalogue import INTERMEDIATE_DIRECTORIES, SCRATCH, STAGES, list_unneeded
from pipeline.runs.run_directory import hold_and_run
from tests.slow import mark_slow

Prep = Callable[..., Any]


def files(directory: Path) -> dict[str, str]:
    """Hash of every file that is no scratch and says nothing of when and how it was made."""
    told = {".lock", "events.head", "events.jsonl", "manifest.json", "journal"}
    return {
        path.as_posix(): hash_file(directory / path)
        for path in files_below(directory)
        if path.parts[0] not in {*SCRATCH, *told}
    }


@pytest.fixture(scope="module")
def run(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A run with these settings, made once."""

    @functools.cache
    def make(*settings: str) -> Path:
        out = tmp_path_factory.mktemp("keep") / "run"
        pipeline.run(corpus.config, out, 0, overrides=settings)
        return out

    return make


@pytest.mark.parametrize("form", mark_slow(["sample", "vsl", "corpus"], "vsl"))
def test_the_same_run_without_its_scratch(form: str, run: Callable[..., Path], prep: Prep) -> None:
    least = run(f"pack.format={form}", "keep=minimal")
    assert files(least) == files(run(f"pack.format={form}"))
    assert not [name for name in SCRATCH if (least / name).exists()]
    verified = prep("verify", least)
    assert verified.code == 0, verified.err


def test_stages_run_again_whose_inputs_are_gone(
    run: Callable[..., Path], corpus: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(run("pack.format=sample", "keep=minimal"), out)
    changed = ("pack.max_sequence_length=32", "keep=minimal")
    pipeline.run(corpus.config, out, 0, overrides=changed)
    assert files(out) == files(run(*changed))


def test_lineage_keeps_the_tokens(run: Callable[..., Path], prep: Prep, tmp_path: Path) -> None:
    lineage, least = run("keep=lineage"), run("pack.format=sample", "keep=minimal")
    assert files(lineage) == files(least)
    assert [name for name in SCRATCH if (lineage / name).exists()] == ["tokens"]
    removed = json.loads((lineage / "manifest.json").read_bytes())["removed"]
    assert set(removed) <= set(INTERMEDIATE_DIRECTORIES)
    assert prep("repack", lineage, "--out", tmp_path / "new", "--msl", 32).code == 0
    refused = prep("repack", least, "--out", tmp_path / "other", "--msl", 32)
    assert refused.code == 3 and "run it again with `keep: lineage`" in refused.err


def test_a_finished_run_that_is_to_keep_less(
    run: Callable[..., Path], corpus: Any, prep: Prep, tmp_path: Path
) -> None:
    """Nothing runs again; what is not needed goes."""
    out = tmp_path / "run"
    shutil.copytree(run("pack.format=sample"), out)
    again = pipeline.run(corpus.config, out, 0, overrides=("keep=minimal",))
    assert len(again.reused) == len(again.stages)
    assert not [name for name in SCRATCH if (out / name).exists()]
    assert prep("verify", out).code == 0


def test_nothing_goes_before_its_last_reader() -> None:
    """A stage later in the order than one that frees a place never reads it."""
    stages = ("scatter", "gather", "rows", "inverse", "pack")
    written = {"tokens", "documents"}
    freed: set[str] = set()
    for name in stages:
        assert not freed & set(STAGES[name].needs), name
        written |= set(STAGES[name].writes)
        freed |= set(list_unneeded("prepare", name, written - freed))
    assert freed == {"tokens", "shuffle", "stream", "rows"}


def test_the_plan_counts_what_is_there_at_once(corpus: Any, tmp_path: Path) -> None:
    everything, lineage, least = (
        pipeline.plan(corpus.config, tmp_path / "none", overrides=(f"keep={keep}",)).total
        for keep in ("all", "lineage", "minimal")
    )
    assert lineage == everything
    assert least.kept_bytes < everything.kept_bytes
    assert least.kept_bytes < least.disk_bytes < 0.8 * everything.disk_bytes


def test_what_is_deleted_too_early_is_an_error_not_a_loop(tmp_path: Path) -> None:
    attempts: list[frozenset[str]] = []

    def attempt(removed: frozenset[str]) -> None:
        attempts.append(removed)
        raise RemovedInputError(frozenset({"tokens"}))

    with pytest.raises(IntegrityError, match="needed again: tokens, but this run deleted them"):
        hold_and_run(tmp_path, "prepare", Progress(quiet=True), attempt)
    assert len(attempts) == 2
