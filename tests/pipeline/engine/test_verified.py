"""What was verified is remembered by all processes of a host, and forgotten with any change."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.core.errors import IntegrityError
from pipeline.core.hashes import hash_bytes, hash_file
from pipeline.engine import verified

COUNT = """
import sys
from pathlib import Path
from pipeline.engine import verified
hashed = []
real = verified.verify_file
verified.verify_file = lambda path, expected: (hashed.append(path), real(path, expected))
for _ in range(2):
    verified.verify_once(Path(sys.argv[1]), sys.argv[2])
print(len(hashed))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(1 << 16))
    time.sleep(2 * verified._SETTLED_NS / 1e9)
    return path


def hashed(path: Path, cache: Path, expected: str = "") -> int:
    """How often a fresh process hashes the file when it asks for it twice."""
    environment = {**os.environ, "WAFERMILL_CACHE": str(cache)}
    words = [sys.executable, "-c", COUNT, str(path), expected or hash_file(path)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return int(ended.stdout)


def test_the_second_process_does_not_hash(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert [hashed(file, cache) for _ in range(3)] == [1, 0, 0]
    assert (cache / "verified").stat().st_blocks * 512 <= 1 << 16, "a sparse file"


def test_a_change_with_the_old_time_is_seen(file: Path, tmp_path: Path) -> None:
    cache, before, good = tmp_path / "cache", file.stat(), hash_file(file)
    assert hashed(file, cache) == 1
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(subprocess.CalledProcessError) as failed:
        hashed(file, cache, good)
    assert "IntegrityError" in failed.value.stderr


def test_another_file_under_the_name_is_hashed(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert hashed(file, cache) == 1
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes())
    copy.replace(file)
    time.sleep(2 * verified._SETTLED_NS / 1e9)
    assert [hashed(file, cache), hashed(file, cache)] == [1, 0]


def test_without_a_cache_each_process_remembers(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory would be")
    assert [hashed(file, tmp_path / "cache") for _ in range(2)] == [1, 1]


def test_a_damaged_table_is_no_proof(file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert hashed(file, cache) == 1
    (cache / "verified").write_bytes(os.urandom(verified._PLACES * verified._DIGEST_BYTES))
    assert [hashed(file, cache), hashed(file, cache)] == [1, 0]


def test_a_young_file_is_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two states of a file within one tick of its clock look the same."""
    monkeypatch.setattr(verified, "_SETTLED_NS", 1 << 62)
    calls: list[Path] = []
    monkeypatch.setattr(verified, "verify_file", lambda path, expected: calls.append(path))
    path = tmp_path / "young"
    path.write_bytes(b"")
    for _ in range(2):
        verified.verify_once(path, "hash")
    assert len(calls) == 2


def test_many_files_are_reported_in_order(tmp_path: Path) -> None:
    files = []
    for number in range(20):
        path = tmp_path / str(number)
        path.write_bytes(b"%d" % number)
        files.append((path, hash_bytes(b"%d" % number)))
    files[3] = (tmp_path / "gone", "hash")
    files[7] = (files[7][0], "0" * 32)
    problems = list(verified.verify_files(files))
    assert [number for number, problem in enumerate(problems) if problem] == [3, 7]
    assert isinstance(problems[3], IntegrityError)
    assert "missing" in str(problems[3]) and "damaged" in str(problems[7])
