"""Distributions with entry points, as an installer leaves them: `*.dist-info` next to modules; and
`prep` with them, here or in a process of its own, which takes seconds to import everything."""

import contextlib
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.forked import Ended

REPOSITORY = Path(__file__).resolve().parents[2]
EXTENDING = REPOSITORY / "docs/extending.md"


def install(
    site: Path,
    name: str,
    entry_points: dict[str, dict[str, str]],
    modules: dict[str, str],
    version: str = "1.0",
) -> None:
    """A distribution; `entry_points` are by group and name."""
    about = site / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in named.items())])
        for group, named in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(sections))
    for path, code in modules.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(code)


def example(section: str) -> str:
    """The Python code of a section of docs/extending.md."""
    page = EXTENDING.read_text("utf-8")
    code = re.search(r"^```python\n(.*?)^```$", page[page.index(section) :], re.M | re.S)
    assert code
    return code[1]


@contextlib.contextmanager
def installed_here(site: Path, module: str, *kept: Any) -> Iterator[None]:
    """What is installed at a place, in this process; `kept` cache what they found installed."""

    def forget() -> None:
        sys.modules.pop(module, None)
        importlib.invalidate_caches()
        for find in kept:
            find.cache_clear()

    sys.path.insert(0, str(site))
    forget()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        forget()


def prep_here(
    prep: Callable[..., Ended], module: str, *kept: Any
) -> Callable[[Path, object], Ended]:
    """`prep` in this process, which finds what is installed at its first argument when called."""

    def call(site: Path, *words: object) -> Ended:
        with installed_here(site, module, *kept):
            return prep(*words)

    return call


def prep_with(site: Path, home: Path, *words: object) -> Ended:
    """`prep` in a process of its own, with these distributions installed."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-m", "pipeline", *map(str, words)]
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, env=environment, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def only_line(ended: Ended) -> str:
    """The error, which is one line behind those of the progress."""
    [line] = [line for line in ended.err.splitlines() if line.startswith("prep: ")]
    assert line == ended.err.splitlines()[-1] and "Traceback" not in ended.err
    return line
