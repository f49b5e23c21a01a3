"""With --json a command ends with one line of JSON on standard error, whatever went wrong."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pipeline.commands.app import app


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))
    if any("--json" in parameter.opts for parameter in command.params):
        yield words, command


WITH_JSON = dict(commands(get_command(app)))


def read_error(ended: Any) -> dict[str, Any]:
    """The last line; those before it are progress."""
    assert ended.out == "", ended.out
    *_, last = [json.loads(line) for line in ended.err.splitlines()]
    assert last.keys() == {"event", "message", "exit_code"}
    assert last["event"] == "error" and last["message"]
    assert last["exit_code"] == ended.code != 0
    return last


def test_most_commands_have_it() -> None:
    assert len(WITH_JSON) > 30
    assert {("run",), ("search",), ("verify",), ("policy", "check")} <= WITH_JSON.keys()


@pytest.mark.parametrize("words", WITH_JSON, ids=" ".join)
def test_a_wrong_option(words: tuple[str, ...], prep: Callable[..., Any]) -> None:
    last = read_error(prep(*words, "--json", "--no-such-option"))
    assert last["exit_code"] == 2 and "--no-such-option" in last["message"]


NEEDY = [words for words, command in WITH_JSON.items() if any(p.required for p in command.params)]


@pytest.mark.parametrize("words", NEEDY, ids=" ".join)
def test_what_is_not_there(
    words: tuple[str, ...], prep: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """Every parameter that there must be is the name of nothing."""
    monkeypatch.chdir(tmp_path)
    arguments: list[str] = []
    for parameter in WITH_JSON[words].params:
        if parameter.required:
            is_option = parameter.opts[-1].startswith("-")
            arguments += [parameter.opts[-1], "nowhere"] if is_option else ["nowhere"]
    read_error(prep(*words, *arguments, "--json"))


def test_without_it_an_error_is_text(prep: Callable[..., Any], tmp_path: Path) -> None:
    """Also where the word is no option."""
    ended = prep("search", tmp_path, "--", "--json")
    assert ended.code == 3 and ended.err.startswith("prep: ")
