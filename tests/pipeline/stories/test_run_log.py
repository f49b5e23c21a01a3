"""`prep log`: every start of a command and every event, with what was made and why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import IntegrityError
from pipeline.stories.status import Session, read_run_log
from tests.forked import prep_in_fork

Prep = Callable[..., Any]


def sessions(run: Path) -> list[Session]:
    return [entry for entry in read_run_log(run) if isinstance(entry, Session)]


def test_runs_stops_and_changes(corpus: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "run"
    here = ("run", corpus.config, "--out", out, "--workers", 0)
    assert prep_in_fork(*here, fault="task.start.bands@3=kill").code != 0
    assert prep(*here).code == 0
    assert prep(*here).code == 0
    assert prep(*here, "--set", "pack.bucket_tokens=1024").code == 0
    killed, resumed, nothing, changed = sessions(out)
    assert (killed.state, killed.seconds, killed.run) == ("stopped", None, "")
    assert killed.made[0].stage == "registry"
    assert killed.made[0].changed == ()
    names = {stage.stage for stage in killed.made if stage.stage != "bands"}
    assert "clean" in names
    assert names.isdisjoint(stage.stage for stage in resumed.made)
    assert (resumed.state, nothing.state, changed.state) == ("done",) * 3
    assert resumed.seconds is not None
    assert resumed.seconds > 0
    assert nothing.made == []
    assert nothing.run == resumed.run != changed.run
    assert changed.made[0].stage == "gather"
    assert changed.made[0].changed == ("settings.bucket_tokens",)
    assert changed.story == "prepare"


def test_a_damaged_file_is_named(corpus: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "run"
    here = ("run", corpus.config, "--out", out, "--workers", 0)
    assert prep(*here).code == 0
    shard = next((out / "tokens").iterdir())
    shard.write_bytes(shard.read_bytes()[:-9])
    assert prep(*here).code == 0
    first, second = sessions(out)
    assert first.problems == []
    assert shard.name in second.problems[0]
    assert first.run == second.run
    shown = prep("log", out)
    assert "1 stage, from tokenize on (1 damaged)" in shown.out


def test_what_people_decided_is_between(corpus: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "run"
    assert prep("run", corpus.config, "--out", out, "--workers", 0).code == 0
    value = json.loads(prep("log", out, "--json").out)
    assert [entry.get("kind", "run") for entry in value] == ["run", "screening"]
    assert value[1]["by"] == "prep"
    shown = prep("log", out).out
    assert "screening by prep" in shown
    assert value[0]["run"][:12] in shown


def test_a_changed_log_is_an_error(corpus: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "run"
    assert prep("run", corpus.config, "--out", out, "--workers", 0).code == 0
    log = out / "events.jsonl"
    log.write_text(log.read_text().replace('"by":"prep"', '"by":"me"'))
    with pytest.raises(IntegrityError, match="event 1"):
        read_run_log(out)


def test_no_directory(tmp_path: Path, prep: Prep) -> None:
    shown = prep("log", tmp_path / "none")
    assert shown.code == 3
    assert "no such run directory" in shown.err
    (tmp_path / "empty").mkdir()
    assert "no such run directory" in prep("log", tmp_path / "empty").err
