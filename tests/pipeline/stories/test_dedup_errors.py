"""`prep dedup` with wrong options and inputs, its alarm, its help."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.raw_shards import Prep, Raw, line


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, write_prose: Callable[..., str]) -> Raw:
    """Read only."""
    return Raw(tmp_path_factory.mktemp("raw") / "corpus", write_prose)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--preset", "fineweeb"], 2, "; did you mean 'fineweb'?"),
        (["--preset", "none"], 2, "--preset none: expected one of slimpajama"),
        (["--verify", "yes"], 2, "--verify: expected 'exact', 'estimate' or 'none'; got yes"),
        (["--threshold", 1.5], 2, "--threshold: expected less than or equal to 1; got 1.5"),
        (["--memory", "1 GibberBytes"], 2, "--memory: expected bytes such as"),
        (["--memory", "1 MiB"], 2, "--memory: expected greater than or equal to 16777216"),
        (["--max-source-share", 3], 2, "--max-source-share: "),
        (["--max-bad-share", "x"], 2, "--max-bad-share: expected a share such as"),
        (["--containment", "x"], 2, "--containment: expected a share such as"),
        (["--containment", 0.4], 2, "--containment: expected greater than or equal to 0.5"),
        (["--name", "a/b"], 2, "--name: "),
        (["--max-bad-share", 0], 3, "2 of 38 records are bad"),
        (["--max-bad-share", 0], 3, ", the first at "),
        (["--max-bad-share", 1, "--key", "link"], 3, "no document of 36 has 'link' in its meta"),
        (["--text-key", "body", "--max-bad-share", 1], 3, "no document is left"),
        (["--index", "nowhere"], 3, "nowhere: not a finished run"),
    ],
)  # fmt: skip
def test_errors(
    options: list[object], code: int, message: str, raw: Raw, tmp_path: Path, prep: Prep
) -> None:
    ended = prep("dedup", raw.root, "--out", tmp_path / "out", "--workers", 0, *options)
    assert ended.code == code, ended.err
    assert message in ended.err
    assert code == 3 or list(tmp_path.iterdir()) == []
    assert not (tmp_path / "out/manifest.json").exists()


def test_files_that_are_not_there(raw: Raw, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "out"
    gone = prep("dedup", raw.files[0], tmp_path / "x*.jsonl", "--out", out)
    assert gone.code == 3 and "x*.jsonl: found nothing that ends in .jsonl" in gone.err
    other = prep("dedup", raw.root / "README.md", "--out", out)
    assert other.code == 3 and "found 1 file but none that ends in" in other.err
    inside = prep("dedup", raw.root, "--out", raw.root)
    assert inside.code == 3 and "is in the output directory" in inside.err
    assert prep("dedup", raw.root).code == 2 and prep("dedup").code == 2
    assert list(tmp_path.iterdir()) == []


def test_the_alarm(tmp_path: Path, prep: Prep, write_prose: Callable[..., str]) -> None:
    """More than the configured share of one source would go."""
    text = write_prose(1, 200)
    lines = [line(text, n=n) for n in range(120)] + [line(write_prose(2))]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    options = ("--out", tmp_path / "out", "--workers", 0)
    stopped = prep("dedup", tmp_path / "a.jsonl", *options)
    assert stopped.code == 3 and "119 of 121 documents (98.3 %) would be removed" in stopped.err
    assert not (tmp_path / "out/records").exists()
    allowed = prep("dedup", tmp_path / "a.jsonl", *options, "--max-source-share", 1)
    assert allowed.code == 0 and "clean: reused" in allowed.err
    assert len((tmp_path / "out/records/a.jsonl").read_bytes().splitlines()) == 2


def test_help(prep: Prep) -> None:
    shown = prep("dedup", "--help")
    assert shown.code == 0
    for words in ("prep dedup corpus/*.jsonl.zst --out kept", "prep dedup index build IDX"):
        assert words in shown.out
    group = prep("dedup", "index", "--help")
    assert "Usage: prep dedup index" in group.out
    for command in ("build", "add", "query"):
        assert command in group.out
        one = prep("dedup", "index", command, "--help")
        assert one.code == 0 and f"prep dedup index {command} IDX" in one.out
    assert prep("dedup", "index", "frobnicate").code == 2


def test_help_needs_no_kernels() -> None:
    """No heavy module is imported to show help, and it takes well below a second."""
    code = (
        "import sys, io, contextlib\nfrom pipeline.commands.app import app\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    for words in (['--help'], ['dedup', '--help'], ['dedup', 'index', 'add', '--help']):\n"
        "        app(words, standalone_mode=False)\n"
        "print([m for m in ('numba', 'pyarrow', 'numpy', 'dask', 'dedup') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_list_of_paths_in_a_config(raw: Raw, tmp_path: Path, prep: Prep) -> None:
    config = tmp_path / "c.yaml"
    paths = [str(p) for p in raw.files[:2]]
    config.write_text(json.dumps({"inputs": [{"name": "x", "path": paths}]}))
    assert "2 raw shards" in prep("plan", config).out
    config.write_text(json.dumps({"inputs": [{"name": "x", "path": []}]}))
    assert "inputs.0.path: expected a path or a list of paths; got []" in prep("plan", config).err


def test_parquet_without_the_column_is_copied_empty(tmp_path: Path, prep: Prep) -> None:
    """Every row is a bad record; the file stays, without rows, with its columns."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"body": ["x", "y"]}), buffer)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a.parquet").write_bytes(buffer.getvalue())
    (tmp_path / "raw/b.jsonl").write_bytes(line("a text of its own") + b"\n")
    out = tmp_path / "out"
    ended = prep("dedup", tmp_path / "raw", "--out", out, "--workers", 0, "--max-bad-share", 1)
    assert ended.code == 0, ended.err
    table = pq.read_table(out / "records/a.parquet")
    assert table.column_names == ["body"] and len(table) == 0
