"""What later runs of a directory do after a takedown."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.core.errors import IntegrityError
from pipeline.stories.verify import verify_run
from pipeline.takedown.apply import apply

from .conftest import (
    SIGNED,
    ends,
    files_with,
    keys_of,
    planned,
    taken_keys,
    text_of,
    write_claim,
)

ROW_SETTINGS = ("pack.max_sequence_length=64",)


@pytest.fixture(scope="module")
def masked(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a takedown of two plain documents and a cluster; read only."""
    root = tmp_path_factory.mktemp("masked")
    shutil.copytree(small_run.directory, root / "run")
    keys = [*keys_of(root / "run", "kept", 2), *keys_of(root / "run", "duplicate", 1)]
    apply(planned(root / "run", root, documents=keys), SIGNED)
    return root / "run"


def test_an_unchanged_run_stays_as_it_is(masked: Path, small_run: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(masked, run)
    before = (run / "hdf5/train/data_params.json").read_bytes()
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert set(manifest.reused) == set(manifest.stages)
    assert (run / "hdf5/train/data_params.json").read_bytes() == before
    verify_run(run)


def test_a_lost_shard_comes_back_without_the_texts(
    masked: Path, small_run: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(masked, run)
    texts = {key: text_of(small_run.directory, key.hex()) for key in taken_keys(run)}
    for path in (run / "documents").glob("*.arrow"):
        path.unlink()
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert [s for s in manifest.stages if s not in manifest.reused] == ["clean"]
    assert [files_with(run, text) for text in texts.values()] == [[]] * len(texts)
    verify_run(run)


def test_a_changed_setting_writes_the_data_set_without_them(
    masked: Path, small_run: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(masked, run)
    taken = taken_keys(run)
    pipeline.run(small_run.corpus.config, run, 0, overrides=ROW_SETTINGS)
    found = ends(run)
    assert {(found[k]["state"], found[k]["reason"]) for k in taken} == {("dropped", "takedown")}
    params = json.loads((run / "hdf5/train/data_params.json").read_bytes())
    assert "derived_from" not in params
    assert not list((run / "hdf5").glob("*/*-001.*"))
    verify_run(run)
    again = pipeline.run(small_run.corpus.config, run, 0, overrides=ROW_SETTINGS)
    assert set(again.reused) == set(again.stages)
    second = planned(run, tmp_path, "c2", documents=keys_of(run, "kept", 1))
    apply(second, SIGNED)
    again = pipeline.run(small_run.corpus.config, run, 0, overrides=ROW_SETTINGS)
    assert set(again.reused) == set(again.stages)
    verify_run(run)


def test_a_copy_that_is_added_later_goes_too(
    masked: Path, small_run: Any, tmp_path: Path, make_corpus: Any
) -> None:
    """The same text under another path: by the hash of the text."""
    run, corpus = tmp_path / "run", make_corpus(tmp_path / "corpus")
    shutil.copytree(masked, run)
    key = next(k for k in taken_keys(run) if ends(run)[k]["state"] == "kept")
    text = text_of(small_run.directory, key.hex())
    (corpus.root / "raw/web/zz.jsonl").write_text(json.dumps({"text": text}) + "\n")
    pipeline.run(corpus.config, run, 0)
    new = [row for row in ends(run).values() if row["path_id"] == 5]
    assert [(row["state"], row["reason"]) for row in new] == [("dropped", "takedown")]
    assert files_with(run, text) == []
    verify_run(run)


def test_rewrite_says_what_to_run_and_the_run_does_it(
    copied: Path, small_run: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    claim = write_claim(tmp_path, documents=keys_of(copied, "kept", 2))
    options = ("--run", copied, "--apply", "--mode", "rewrite", "--by", "Jane")
    ended = prep("takedown", claim, *options)
    assert ended.code == 0
    assert "prep run" in ended.out
    with pytest.raises(IntegrityError, match="not a finished run"):
        verify_run(copied)
    pipeline.run(small_run.corpus.config, copied, 0)
    verify_run(copied)
    taken = taken_keys(copied)
    assert {ends(copied)[key]["reason"] for key in taken} == {"takedown"}
