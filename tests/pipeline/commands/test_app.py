"""`prep` finds its commands without importing them all."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from pipeline.commands.app import COMMANDS, app

HEAVY = ("torch", "pyarrow", "dask", "distributed", "numba", "h5py", "numpy", "ftfy", "tokenizers")
LISTED = f"""
import sys
from pipeline.commands import app
sys.argv = ["prep", "--help"]
try:
    app.main()
except SystemExit:
    pass
loaded = [name for name in {HEAVY!r} if name in sys.modules]
loaded += [name for name in sys.modules if name.startswith(("pipeline.stories", "pipeline.stages"))]
assert not loaded, loaded
"""


def test_the_list_says_what_the_commands_say() -> None:
    commands = typer.main.get_command(app).commands
    for name, (_, text) in COMMANDS.items():
        paragraph = (commands[name].help or "").split("\n\n")[0]
        assert " ".join(paragraph.split()) == text, name


def test_every_command_is_listed() -> None:
    group = typer.main.get_command(app)
    assert list(group.commands) == list(COMMANDS)
    for module in {module for module, _ in COMMANDS.values()}:
        scratch = typer.Typer()
        __import__(module)
        sys.modules[module].register(scratch)
        names = [c.name or c.callback.__name__ for c in scratch.registered_commands]
        names += [g.name for g in scratch.registered_groups]
        assert set(names) == {n for n, (m, _) in COMMANDS.items() if m == module}


def test_help_of_commands_imports_nothing_heavy() -> None:
    modules = sorted({module for module, _ in COMMANDS.values()})
    code = f"import sys\n{''.join(f'import {module}' + chr(10) for module in modules)}"
    code += (
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\nassert not loaded, loaded"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_list_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "takedown" in done.stdout


RUN = ("dask", "distributed", "torch", "datasets", "scipy.linalg", "numba.np.arraymath")
REPEATED = (*RUN, "numba", "h5py", "ftfy", "jinja2", "rapidfuzz", "fastokens")
HELP = (*REPEATED, "numpy", "pyarrow", "tokenizers", "pydantic", "yaml", "importlib.metadata")
IMPORTED = """
import json, sys
from pipeline.commands import app
try:
    app.main()
except SystemExit as end:
    print(json.dumps([end.code, *sys.modules]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("--help", HELP),
        ("run --help", ("numpy", "pyarrow", *REPEATED)),
        ("status OUT", ("numpy", "pyarrow", *REPEATED)),
        ("run CONFIG --out NEW --workers 0", RUN),
        ("run CONFIG --out OUT --workers 0", REPEATED),
    ],
)
def test_a_command_imports_what_it_needs(
    command: str, heavy: tuple[str, ...], small_run: Any, tmp_path: Path
) -> None:
    """In a process of its own, up to its end. What is imported takes most of a short command."""
    places = {"OUT": small_run.directory, "CONFIG": small_run.corpus.config, "NEW": tmp_path / "r"}
    words = [str(places.get(word, word)) for word in command.split()]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *words], capture_output=True, text=True, timeout=300,
        check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    code, *loaded = json.loads(done.stderr.splitlines()[-1])
    assert not code, done.stderr
    assert not set(heavy) & set(loaded)


SEARCHES = """
import gc, sys
import pipeline.commands
before = gc.get_stats()
from pipeline.commands import app
try:
    app.main()
finally:
    print(gc.get_stats() == before, file=sys.stderr)
"""


def test_a_small_run_ends_before_a_search_for_cycles(small_run: Any, tmp_path: Path) -> None:
    words = ["run", str(small_run.corpus.config), "--out", str(tmp_path / "r"), "--workers", "0"]
    done = subprocess.run(
        [sys.executable, "-c", SEARCHES, *words], capture_output=True, text=True, timeout=300,
        check=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "True"


def test_pyarrow_imports_no_pandas_and_still_can() -> None:
    code = """
import sys
import pyarrow as pa
from pipeline.core import ids
table = pa.table({"a": [1, 2], "b": ["x", None]})
assert "pandas" not in sys.modules
import pandas
assert table.to_pandas().equals(pandas.DataFrame({"a": [1, 2], "b": ["x", None]}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
