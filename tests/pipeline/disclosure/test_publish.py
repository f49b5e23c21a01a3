"""`prep disclose`: what is written, when it refuses, and that equal input gives equal bytes."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from pipeline.commands import app as cli
from pipeline.commands.export import register
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.disclosure.about import About, load_about
from pipeline.disclosure.publish import DOCUMENTS, write_disclosure

from .conftest import RichRun

FILES = {"audit.html", "README.md", "croissant.json", "eu_training_summary.md",
         "eu_training_summary.json", "california_ab2013.md", "spdx.json"}  # fmt: skip


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.callback()(lambda: None)
    register(made)
    return made


def test_equal_input_gives_equal_bytes_and_no_leftovers(rich_run: RichRun, tmp_path: Path) -> None:
    one = write_disclosure(rich_run.directory, tmp_path / "one", rich_run.about_file)
    two = write_disclosure(rich_run.directory, tmp_path / "deep/two", rich_run.about_file)
    assert {name for name, _ in one.files} == FILES
    assert {path.name for path in (tmp_path / "one").iterdir()} == FILES
    assert one.todos == two.todos == ()
    for name, size in one.files:
        data = (tmp_path / "one" / name).read_bytes()
        assert data == (tmp_path / "deep/two" / name).read_bytes()
        assert len(data) == size
        assert str(tmp_path).encode() not in data


def test_the_run_is_left_as_it_was(small_run: Any, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in small_run.directory.rglob("*")}
    write_disclosure(small_run.directory, tmp_path)
    assert {p: p.stat().st_mtime_ns for p in small_run.directory.rglob("*")} == before


def test_only_names_documents(small_run: Any, tmp_path: Path) -> None:
    done = write_disclosure(small_run.directory, tmp_path, only=("eu", "audit"))
    assert [name for name, _ in done.files] == [
        "audit.html", "eu_training_summary.md", "eu_training_summary.json",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="--only crossant: unknown document; did you mean 'croi"):
        write_disclosure(small_run.directory, tmp_path, only=("crossant",))


def test_todos_are_told(small_run: Any, tmp_path: Path) -> None:
    done = write_disclosure(small_run.directory, tmp_path)
    assert {"provider.name", "dates.published", "licence.expression", "sources"} <= set(done.todos)


def test_out_inside_the_run_is_refused(small_run: Any) -> None:
    with pytest.raises(ConfigError, match="inside the run directory"):
        write_disclosure(small_run.directory, small_run.directory / "disclosure")


def test_a_source_that_the_run_has_not(small_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "about.yaml"
    path.write_text("sources:\n  Wikki:\n    kind: public\n")
    with pytest.raises(ConfigError, match="no source label 'Wikki'; did you mean 'Wiki'"):
        write_disclosure(small_run.directory, tmp_path / "out", path)
    assert not (tmp_path / "out").exists()


def test_other_directories(tmp_path: Path, small_run: Any) -> None:
    with pytest.raises(InputError, match="no such run directory"):
        write_disclosure(tmp_path / "none", tmp_path / "out")
    copy = tmp_path / "run"
    shutil.copytree(small_run.directory, copy)
    shard = next((copy / "hdf5/train").glob("*.h5"))
    shard.write_bytes(shard.read_bytes() + b"\0")
    with pytest.raises(IntegrityError, match=rf"{shard.name}: damaged"):
        write_disclosure(copy, tmp_path / "out")


def test_the_command(rich_run: RichRun, tmp_path: Path, app: typer.Typer) -> None:
    out = tmp_path / "out"
    arguments = ["disclose", str(rich_run.directory), "--out", str(out), "--internal", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--only", "audit, california"])
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["edition"] == "internal"
    assert [f["file"] for f in value["files"]] == ["audit.html", "california_ab2013.md"]
    assert "provider.name" not in value["todo"]
    assert "sources" in value["todo"]
    assert "internal edition" in (out / "audit.html").read_text()


def test_the_template_of_the_command(tmp_path: Path, app: typer.Typer) -> None:
    done = CliRunner().invoke(app, ["disclose", "--about-template"])
    assert done.exit_code == 0
    (tmp_path / "about.yaml").write_text(done.stdout)
    assert load_about(tmp_path / "about.yaml") == About()


@pytest.mark.parametrize("command", ["clean", "dedup", "repack"])
def test_runs_of_other_commands_are_disclosed(
    command: str, small_run: Any, write_prose: Any, tmp_path: Path, prep: Any
) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"text": write_prose(n)}) + "\n" for n in range(20)))
    of = small_run.directory if command == "repack" else raw
    ended = prep(command, of, "--out", tmp_path / "run", "--workers", 0)
    assert ended.code == 0, ended.err
    found = write_disclosure(tmp_path / "run", tmp_path / "out")
    assert "audit.html" in {name for name, _ in found.files}


def test_an_export_is_refused(small_run: Any, tmp_path: Path, prep: Any) -> None:
    assert prep("export", small_run.directory, "--out", tmp_path / "text").code == 0
    with pytest.raises(InputError, match="made by `prep export`; expected a run of `prep run`"):
        write_disclosure(tmp_path / "text", tmp_path / "out")


def test_nothing_given(app: typer.Typer) -> None:
    done = CliRunner().invoke(app, ["disclose"])
    assert done.exit_code == 2


def test_commands_of_the_manual_parse() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "disclosure.md").read_text("utf-8")
    commands = re.findall(r"^prep (disclose .*)$", manual, re.M)
    assert len(commands) == 3
    group = typer.main.get_command(cli.app)
    for line in commands:
        words = shlex.split(line.partition(" > ")[0])
        with group.make_context("prep", list(words)) as context:
            name, command, rest = group.resolve_command(context, list(words))
            command.make_context(name, rest, parent=context)


def test_every_document_has_a_name() -> None:
    assert list(DOCUMENTS) == ["audit", "card", "croissant", "eu", "california", "spdx"]
