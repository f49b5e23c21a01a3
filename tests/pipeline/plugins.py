"""Distributions with entry points, as an installer leaves them: `*.dist-info` next to modules."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXTENDING = Path(__file__).resolve().parents[2] / "docs/extending.md"


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
def installed_here(site: Path, module: str, kept: Any) -> Iterator[None]:
    """What is installed at a place, in this process; `kept` caches the plug-ins of the group."""
    sys.path.insert(0, str(site))
    kept.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        sys.modules.pop(module, None)
        kept.cache_clear()


def prep_with(site: Path, home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """`prep` in a process of its own, with these distributions installed."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.getcwd()}"}
    command = [sys.executable, "-m", "pipeline", *map(str, words)]
    return subprocess.run(
        command, cwd=home, capture_output=True, text=True, env=environment, check=False
    )


def only_line(ended: subprocess.CompletedProcess[str]) -> str:
    """The error, which is one line behind those of the progress."""
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("prep: ")]
    assert line == ended.stderr.splitlines()[-1] and "Traceback" not in ended.stderr
    return line
