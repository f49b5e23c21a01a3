"""What a command leaves on the terminal when its process ends."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("imported", ["json", "duckdb"])
def test_nothing_is_said_of_objects_that_are_left(imported: str) -> None:
    """Cycles are left alone, but where a library would tell of them."""
    pytest.importorskip(imported)
    program = (
        f"import atexit, gc, {imported}, pipeline.commands\n"
        "atexit._run_exitfuncs()\n"
        "print(gc.get_freeze_count() > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.split() == [str(imported != "duckdb")]
    assert "leak" not in done.stderr
