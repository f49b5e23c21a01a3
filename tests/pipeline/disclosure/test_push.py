"""`prep push`, by the Hub's own client against a server that speaks its protocol."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import ConfigError
from pipeline.disclosure import publish
from tests.hub_server import Hub, serve_hub

Prep = Callable[..., Any]
TO = "hf://datasets/me/corpus"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as server:
        yield server


def test_the_data_set_goes_and_no_text(small_run: Any, hub: Hub) -> None:
    done = hub.push("pipeline", small_run.directory, TO)
    assert done.returncode == 0, done.stderr
    assert hub.made == [{**hub.made[0], "name": "corpus", "organization": "me", "type": "dataset"}]
    (files,) = hub.commits
    assert list(files)[-1] == "README.md"
    assert files["README.md"].startswith(b"---\n")
    assert json.loads(files["croissant.json"])["@type"] == "sc:Dataset"
    for path in set(files) - {"README.md", "croissant.json"}:
        assert files[path] == (small_run.directory / path).read_bytes()
    tops = {path.split("/")[0] for path in files}
    assert {"hdf5", "documents.parquet", "tokenizer.json"} <= tops
    assert tops.isdisjoint({"documents", "drops", "quarantine", "tokens", "evidence.parquet"})
    described = {one["contentUrl"] for one in json.loads(files["croissant.json"])["distribution"]
                 if "contentUrl" in one}  # fmt: skip
    assert {path for path in files if path.endswith(".h5")} <= described


def test_of_a_clean_run_the_records_go(tmp_path: Path, write_prose: Any, prep: Prep) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"text": write_prose(n)}) + "\n" for n in range(20)))
    assert prep("clean", raw, "--out", tmp_path / "run", "--workers", 0).code == 0
    listed = publish.push_run(tmp_path / "run", publish.PushOptions(to=TO), True, print)
    assert "cleaned/000000.jsonl.zst" in {upload.path for upload in listed}


def test_damage_is_refused_before_anything_goes(small_run: Any, hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(small_run.directory, tmp_path / "run")
    table = tmp_path / "run/sources.parquet"
    table = table if table.is_file() else sorted(table.iterdir())[0]
    table.write_bytes(table.read_bytes()[:-1])
    done = hub.push("pipeline", tmp_path / "run", TO)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr
    assert "damaged" in done.stderr
    assert hub.made == []


def test_a_refusal_is_one_line(small_run: Any, hub: Hub) -> None:
    hub.refuses = True
    done = hub.push("pipeline", small_run.directory, TO)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "403" in done.stderr
    assert "hf auth login" in done.stderr


def test_a_failure_without_words(small_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", fail)
    with pytest.raises(ConfigError, match="TimeoutError: no reason given; the same command"):
        publish.push_run(small_run.directory, publish.PushOptions(to=TO), False, print)


def test_a_dry_run_needs_no_network(small_run: Any, prep: Prep, hub: Hub) -> None:
    listed = json.loads(prep("push", small_run.directory, TO, "--dry-run", "--json").out)
    assert [file["path"] for file in listed][-1] == "README.md"
    assert hub.made == []
    shown = prep("push", small_run.directory, TO, "--dry-run").out
    assert f"{len(listed)} files" in shown
    assert f"would be uploaded to {TO}" in shown
