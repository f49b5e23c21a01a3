"""Prints the tree of the packages, each module with the first sentence of its docstring.

python docs/make_tour.py                  # the four packages
python docs/make_tour.py pipeline/stages  # one folder
"""

import argparse
import ast
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("pipeline", "dedup", "wafer_backend", "trainer")
WIDEST_NAME = 44
# A full stop ends a sentence before white space, but not in "et al." or "e.g.".
SENTENCE = re.compile(r".*?(?<!et al)(?<!e\.g)(?<!i\.e)[.?!](?=\s|$)", re.S)


def first_sentence(source: str) -> str:
    """The first sentence of a module's docstring, on one line; empty without a docstring."""
    paragraph = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
    line = " ".join(paragraph.split())
    found = SENTENCE.match(line)
    return found[0] if found else line


def entries(folder: Path, name: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Indented name and first sentence of a folder, its modules and the folders in it."""
    package = folder / "__init__.py"
    about = first_sentence(package.read_text("utf-8")) if package.exists() else ""
    yield "  " * depth + name + "/", about
    for module in sorted(folder.glob("*.py")):
        if module != package:
            yield "  " * (depth + 1) + module.name, first_sentence(module.read_text("utf-8"))
    for below in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not below.name.startswith((".", "_")) and any(below.rglob("*.py")):
            yield from entries(below, below.name, depth + 1)


def shown(folder: Path) -> str:
    """The path of a folder below the repository, or as it was given."""
    path = folder.resolve()
    return (path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else folder).as_posix()


def tour(folders: Sequence[Path], width: int) -> str:
    """The trees of `folders`: names in one column, sentences wrapped in the other."""
    rows = [row for folder in folders for row in entries(folder, shown(folder))]
    column = min(max(len(name) for name, _ in rows), WIDEST_NAME) + 2
    lines = []
    for name, sentence in rows:
        parts = textwrap.wrap(sentence, max(30, width - column))
        if parts and len(name) + 2 <= column:
            name = name.ljust(column) + parts.pop(0)
        lines += [name, *(" " * column + part for part in parts)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tour; exit code 2 where FOLDER is no folder."""
    parser = argparse.ArgumentParser(
        prog="python docs/make_tour.py",
        description="Print a tree of folders and modules, each with the first sentence of its"
        " docstring.",
    )
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=Path,
        help=f"folder to show, such as pipeline/stages [default: {', '.join(PACKAGES)}]",
    )
    folders = parser.parse_args(arguments).folders or [REPOSITORY / name for name in PACKAGES]
    for folder in folders:
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder; name one, such as pipeline/stages")
    sys.stdout.write(tour(folders, shutil.get_terminal_size().columns))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it quietly
    sys.exit(main())
