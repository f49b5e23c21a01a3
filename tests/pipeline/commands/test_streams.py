"""Commands whose standard output or standard error cannot be written, each in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ARGUMENTS = ["policy", "show"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def run(
    shell: str, *arguments: str, module: str = "pipeline", **environment: str
) -> "subprocess.CompletedProcess[str]":
    """A command with its streams as a shell gives them to it."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        ["bash", "-c", f'"$@" {shell}; echo "code ${{PIPESTATUS[0]}}" >&2', "-", *command],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def test_a_reader_that_closes_early_does_not_end_it() -> None:
    done = run("| head -1", *ARGUMENTS)
    assert done.stderr == "code 0\n" and len(done.stdout.splitlines()) == 1


@needs_full
@pytest.mark.parametrize(
    ("name", "module", "arguments"),
    [("prep", "pipeline", ARGUMENTS), ("train", "trainer", ["plan", "--params", "tiny"])],
)
def test_a_full_disk_is_one_line(name: str, module: str, arguments: list[str]) -> None:
    done = run("> /dev/full", *arguments, module=module)
    assert done.stderr == (
        f"{name}: standard output: No space left on device; not all was written\ncode 5\n"
    )


@needs_full
def test_progress_that_is_lost_ends_no_run(tmp_path: Path) -> None:
    words = "A sentence of eight words, as it is. " * 9
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": words}) + "\n")
    arguments = ("clean", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out"))
    done = run("2> /dev/full", *arguments, "--workers", "0")
    assert done.stderr == "code 0\n", done.stderr
    assert (tmp_path / "out" / "manifest.json").exists()


def test_a_closed_output_is_no_output() -> None:
    done = run(">&-", *ARGUMENTS)
    assert (done.stderr, done.stdout) == ("code 0\n", "")


def test_what_an_encoding_has_not_is_escaped(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('{"text": "x"}\n')
    done = run("", "plan", str(file).replace("one", "\u00e9"), PYTHONIOENCODING="ascii:strict")
    assert "code 2" in done.stderr and "Traceback" not in done.stderr
    assert "\\xe9.jsonl" in done.stderr
