"""Writes docs/prep_commands.md and docs/train_commands.md from the commands themselves.

python docs/make_commands.py          # write the files
python docs/make_commands.py --check  # exit 1 when one is out of date
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from pipeline.commands import app as prep_cli
from trainer import cli as train_cli
from trainer.commands.options import Targets

PAGES = {"prep": prep_cli.app, "train": train_cli.app}
HEAD = """# All commands of `{program}`

Written by `python docs/make_commands.py` from the program, which prints the same with `--help`.
"""
REASON = "<!-- not run: examples of --help; that they parse is tested -->"


def target(program: str) -> Path:
    """The page of a program."""
    return Path(__file__).with_name(f"{program}_commands.md")


def document(program: str) -> str:
    """The page of a program: every command, with arguments, options and examples."""
    command = typer.main.get_command(PAGES[program])
    return "\n".join([HEAD.format(program=program), *sections(command, program)])


def sections(command: Any, name: str) -> Iterator[str]:
    """A command, then those below it. What needs no name is described as its group is called."""
    below = dict(getattr(command, "commands", {}))
    unnamed = below.pop(Targets.RUN, None) if isinstance(command, Targets) else None
    yield from section(unnamed or command, name)
    for word, child in below.items():
        yield from sections(child, f"{name} {word}")


def section(command: Any, name: str) -> Iterator[str]:
    """Heading, usage, text, one table of options for every panel of the help, examples."""
    with command.make_context(name, [], resilient_parsing=True) as context:
        usage = " ".join(p.strip("{}") for p in command.collect_usage_pieces(context))
        yield f"## `{name}`\n"
        yield f"```text\n{name} {usage}\n```\n"
        yield _plain(command.help or "") + "\n"
        panels: dict[str, list[str]] = {}
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is None or "--help" in record[0]:
                continue
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(f"| `{_cell(record[0])}` | {_prose(record[1])} |")
    for panel, rows in panels.items():
        yield "\n".join([f"| {panel} | |", "| --- | --- |", *rows]) + "\n"
    yield from epilog(command.epilog or "")


def epilog(text: str) -> Iterator[str]:
    """Examples as a block of code, and what else is said after the options."""
    commands = []
    for paragraph in text.replace("\b\n", "").strip().split("\n\n"):
        lines = paragraph.strip().splitlines()
        if lines and lines[0] in ("Examples:", "Example:"):
            commands += [line.removeprefix("  ") for line in lines[1:]]
        elif paragraph.startswith("Example: `"):
            commands.append(paragraph.removeprefix("Example: `").rstrip("`"))
        elif paragraph.startswith("`") and paragraph.endswith("`") and paragraph.count("`") == 2:
            commands.append(paragraph.strip("`"))
        elif lines:
            if commands:
                yield _examples(commands)
                commands = []
            listed = any(line.startswith("  ") for line in lines)
            yield f"```text\n{paragraph}\n```\n" if listed else _plain(paragraph) + "\n"
    if commands:
        yield _examples(commands)


def _examples(commands: list[str]) -> str:
    return "\n".join([REASON, "```bash", *commands, "```"]) + "\n"


def _plain(text: str) -> str:
    """A paragraph of help on a page: no marks of the help, and no tag where help has a bracket."""
    return text.replace("\b", "").strip().replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _prose(text: str) -> str:
    """A cell with no link: help has its defaults in brackets."""
    return _cell(text).replace("[", "\\[").replace("<", "&lt;")


if __name__ == "__main__":
    ended = 0
    for program in PAGES:
        text = document(program)
        if "--check" not in sys.argv[1:]:
            target(program).write_text(text, encoding="utf-8")
        elif target(program).read_text(encoding="utf-8") != text:
            ended = 1
    sys.exit(ended)
