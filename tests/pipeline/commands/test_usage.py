"""The docstring of a command is its manual: what of it becomes help, options and examples."""

import subprocess
import sys
from typing import Annotated, Any

import pytest
import typer

from pipeline.commands.usage import commands, group


def build(register: Any, name: str) -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    built: Any = typer.main.get_command(app)
    return built.commands[name]


def test_a_manual_is_read() -> None:
    def cut_up(
        run: str,
        words: list[str],
        length: Annotated[int, typer.Option(min=1)] = 3,
        from_: str = "",
        dry: bool = False,
        step: int | None = None,
    ) -> None:
        """Cut it up.

        A second paragraph: with a colon.

        RUN: what is cut
        WORDS...: where it is cut, in
            two lines
        --length N: of a piece, such as 3: short
        --from KIND: what RUN is
        --dry/--wet: look only

        Backwards:
        --step A[:B]: a step

        Examples:
        prep cut-up x --length 3
            --dry
        Then look.
        """

    command = build(commands(cut_up), "cut-up")
    assert command.help == "Cut it up.\n\nA second paragraph: with a colon."
    assert command.epilog == "Examples:\n\n`prep cut-up x --length 3 --dry`\n\nThen look."
    assert command.no_args_is_help
    run, words, *options = command.params
    assert (run.metavar, run.help) == ("RUN", "what is cut")
    assert (words.metavar, words.help) == ("WORDS...", "where it is cut, in two lines")
    length, kind, dry, step = options
    assert (length.opts, length.metavar, length.help) == (
        ["--length"], "N", "of a piece, such as 3: short",
    )  # fmt: skip
    assert (length.min, length.default) == (1, 3)
    assert kind.opts == ["--from"] and kind.name == "from_"
    assert (dry.opts, dry.secondary_opts) == (["--dry"], ["--wet"])
    assert (step.metavar, step.rich_help_panel) == ("A[:B]", "Backwards")


def test_a_group_describes_what_its_commands_share() -> None:
    def first(by: str) -> None:
        """One.

        Example: prep g first
        """

    def second(by: str, other: int = 1) -> None:
        """Two.

        --by WHOM: its own words
        --other: another
        """

    texts = group("g", "A group.\n\n--by NAME: who\n--never: used by none", first, second)
    both = build(texts, "g")
    assert both.help == "A group."
    assert [both.commands[name].params[0].metavar for name in ("first", "second")] == [
        "NAME", "WHOM",
    ]  # fmt: skip
    assert both.commands["first"].epilog == "Example: `prep g first`"


def test_a_line_too_many_or_too_few_is_an_error() -> None:
    def forgotten(run: str) -> None:
        """Without a line."""

    def unknown(run: str = "") -> None:
        """One too many.

        --run: there
        --ran: not there
        """

    with pytest.raises(ValueError, match="shorter"):
        build(commands(forgotten), "forgotten")
    with pytest.raises(KeyError, match="ran"):
        build(commands(unknown), "unknown")


HELP = """
import importlib, typer
from pipeline.commands import app
from trainer import cli
for module in sorted({name for table in (app, cli) for name, _ in table.COMMANDS.values()}):
    group = typer.Typer(rich_markup_mode=None)
    group.callback()(lambda: None)
    importlib.import_module(module).register(group)
    waiting = [typer.main.get_command(group)]
    while waiting:
        command = waiting.pop()
        print(module, command.name, command.help, command.epilog)
        for parameter in command.params:
            print(parameter.opts, parameter.metavar, getattr(parameter, "help", ""))
        waiting += getattr(command, "commands", {}).values()
"""


def test_python_without_docstrings_has_the_same_help() -> None:
    """`python -OO`, which images set by PYTHONOPTIMIZE=2, keeps no docstring."""
    plain, stripped = (
        subprocess.run(
            [sys.executable, *flags, "-c", HELP], capture_output=True, text=True, check=True
        ).stdout
        for flags in ((), ("-OO",))
    )
    assert stripped == plain
    assert plain.count("--") > 300
