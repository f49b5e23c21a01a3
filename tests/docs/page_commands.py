"""The blocks of commands on a page, and a shell that runs them.

A block is a fence of `bash`; or a fence of `console`, `sh` or no language, or indented lines, with
a prompt or a command of ours. Of what has prompts, the lines with a prompt are run. What a comment
in front of a block says:

<!-- not run: why -->    it is only parsed
<!-- slow -->            it is run with the slow tests

and, anywhere on the page:

<!-- after: PAGE.md -->  the page starts from what that page left
<!-- before: LINES -->   commands that are run at this place, and are not shown
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.forked import prep_in_fork

REPOSITORY = Path(__file__).resolve().parents[2]
PART = re.compile(
    r"^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=fence)$"
    r"|(?P<indented>(?:^ {4}[^\n]*\n(?:\n(?= {4}))*)+)"
    r"|^<!-- (?P<word>not run|slow|after|before)(?:: ?(?P<rest>.*?))? ?-->\n",
    re.M | re.S,
)
PROMPTED = re.compile(r"^\$ ((?:[^\n]*\\\n)*[^\n]*\n)", re.M)
OURS = re.compile(r"^(?:prep|train) [^\[|\n]*$|^(?:dask|torchrun|export|pip|make) ", re.M)
HEREDOC = re.compile(r"<<'(\w+)'")
SHELL_SIGNS = re.compile(r"[|<>&;$*`]")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Commands of a page, in the order of the page."""

    line: int
    language: str
    code: str
    not_run: str = ""
    slow: bool = False

    @property
    def is_run(self) -> bool:
        """Whether a test runs it, every day or with the slow tests."""
        return bool(self.commands) and not self.not_run

    @property
    def commands(self) -> str:
        """What is run: all, or what follows prompts; of indented lines without prompts nothing."""
        if self.language in ("bash", "before"):
            return self.code
        return "".join(PROMPTED.findall(self.code))


@dataclass(frozen=True)
class Page:
    """The blocks of a page, and the page whose directory it starts from."""

    path: Path
    after: Path | None
    blocks: list[Block]


def read_page(path: Path) -> Page:
    """The page at `path`; a comment holds for the block that follows it."""
    text = path.read_text(encoding="utf-8")
    after, marks, end, blocks = None, {}, 0, []
    for part in PART.finditer(text):
        line, word, rest = text.count("\n", 0, part.start()) + 1, part["word"], part["rest"] or ""
        if text[end : part.start()].strip():
            marks = {}  # text between: the comment was in front of something else
        end = part.end()
        if word == "after":
            after = (path.parent / rest).resolve()
        elif word == "before":
            blocks.append(
                Block(line=line, language="before", code=rest.strip() + "\n", slow="slow" in marks)
            )
        elif word:
            marks[word] = " ".join(rest.split()) or "-"
        else:
            language, code = part["language"], part["code"]
            if part["indented"]:
                language, code = "indented", re.sub(r"^ {4}", "", part["indented"], flags=re.M)
            if language in ("bash", "sh", "console") or (
                language in ("", "indented") and (PROMPTED.search(code) or OURS.search(code))
            ):
                blocks.append(
                    Block(line=line, language=language, code=code,
                          not_run=marks.get("not run", ""), slow="slow" in marks)
                )  # fmt: skip
            marks = {}
    return Page(path, after, blocks)


def simple_commands(code: str) -> Iterator[str]:
    """The commands of a block, each with its continuation lines and its here-document."""
    lines = iter(code.splitlines())
    for line in lines:
        command, end = line, HEREDOC.search(line)
        while command.endswith("\\"):
            command += "\n" + next(lines)
        while end and command.rpartition("\n")[2] != end[1]:
            command += "\n" + next(lines)
        if command.strip() and not command.lstrip().startswith("#"):
            yield command


def run_commands(code: str, directory: Path) -> None:
    """Run them in a directory, `prep` in forks and what is between in one shell.

    AssertionError at the first that fails, with what it said.
    """
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    places = {"WAFERMILL_JOBS": str(directory / ".jobs"), "REPOSITORY": str(REPOSITORY)}
    for is_prep, commands in groupby(simple_commands(code), key=_is_plain_prep):
        for command in commands if is_prep else ["\n".join(commands)]:
            if is_prep:
                words = shlex.split(command.replace("\\\n", " "), comments=True)
                ended = prep_in_fork(*words[1:], cwd=directory)
                said, exit_code = ended.out + ended.err, ended.code
            else:
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", command],
                    cwd=directory, env={**os.environ, **places, "PATH": tools},
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                )  # fmt: skip
                said, exit_code = done.stdout, done.returncode
            assert exit_code == 0, f"{command}\nended with {exit_code}:\n{said}"


def _is_plain_prep(command: str) -> bool:
    return command.startswith("prep ") and not SHELL_SIGNS.search(command.partition("  #")[0])
