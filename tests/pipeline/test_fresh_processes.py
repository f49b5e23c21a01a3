"""What a command publishes is the same in another process, which has its memory elsewhere. Other
tests compare a command's results with those of this process and its forks, which share a layout."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ONE_AFTER_THE_OTHER = """
import sys
from pipeline.commands import app
for line in sys.stdin.read().splitlines():
    sys.argv = ["prep", *line.split("\\t")]
    try:
        app.main()
    except SystemExit as end:
        if end.code:
            raise
"""


def commands(raw: Path, run: Path, out: Path) -> list[list[str]]:
    """Every command that publishes files, but `prep run`, each with its own directory in `out`."""
    asked: list[tuple[object, ...]] = [
        ("dedup", raw, "--out", out / "dedup"),
        ("clean", raw, "--out", out / "clean"),
        ("dedup", "index", "build", out / "index", raw, "--name", "all"),
        ("repack", run, "--out", out / "vsl", "--format", "vsl", "--msl", 48),
        ("repack", run, "--out", out / "row", "--format", "corpus"),
        *(
            ("export", run, "--out", out / f"text-{form}", "--format", form)
            for form in ("jsonl.zst", "jsonl.gz", "parquet")
        ),
        *(
            ("convert", run, "--to", form, "--out", out / form)
            for form in ("hdf5", "corpus", "bin", "jsonl", "parquet")
        ),
    ]
    with_workers = ("dedup", "clean", "repack", "export", "convert")
    return [
        [str(part) for part in (*words, *(("--workers", 0) if words[0] in with_workers else ()))]
        for words in asked
    ]


def test_a_fresh_process_writes_the_same_bytes(
    small_run: Any, write_prose: Callable[..., str], tmp_path: Path, prep: Callable[..., Any]
) -> None:
    raw, here, there = tmp_path / "raw.jsonl.gz", tmp_path / "here", tmp_path / "there"
    texts = (write_prose(number % 70, 120) for number in range(90))
    raw.write_bytes(
        gzip.compress(b"".join(json.dumps({"text": t}).encode() + b"\n" for t in texts))
    )
    for command in commands(raw, small_run.directory, here):
        ended = prep(*command)
        assert ended.code == 0, (command, ended.err)
    lines = ["\t".join(command) for command in commands(raw, small_run.directory, there)]
    subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER], input="\n".join(lines), text=True, check=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    published = [path for path in sorted(here.rglob("*")) if path.is_file()]
    published = [path for path in published if not {"journal", ".lock"} & set(path.parts)]
    assert {path.relative_to(here).parts[0] for path in published} == {
        path.name for path in there.iterdir()
    }
    for path in published:
        assert path.read_bytes() == (there / path.relative_to(here)).read_bytes(), path
