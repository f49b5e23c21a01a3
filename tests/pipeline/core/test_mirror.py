"""The copy on this machine of a directory in a bucket: names, bytes on demand, room."""

import os
import shutil
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import lease, storage
from pipeline.core.errors import ConfigError, IntegrityError
from pipeline.core.hashes import files_below, hash_bytes, read_verified, verify_file
from pipeline.core.manifest import Shard
from pipeline.core.mirror import fetching, listing, paths
from pipeline.core.mirror.absent import free_room, is_absent
from pipeline.core.mirror.fetching import fetch
from pipeline.core.mirror.listing import open_mirror
from pipeline.core.mirror.paths import check_stored, mirror_path, name_urls
from pipeline.core.places import open_place
from pipeline.engine.stage import Inputs

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def root(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror that has published three shards and a table."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "cache"))
    paths._bucket.cache_clear()
    root = mirror_path("s3", f"runs/mirror-{tmp_path.name}")
    for number in range(3):
        storage.publish(root / f"shards/{number}.arrow", bytes([number]) * 50_000)
    storage.write_json(root / "table.json", {"a": 1})
    return root


def other_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path) -> Path:
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "other"))
    other = tmp_path / "other" / root.relative_to(tmp_path / "cache")
    open_mirror(other)
    return other


def test_names_and_sizes_are_there_at_once_and_bytes_when_they_are_read(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_host(monkeypatch, tmp_path, root)
    assert list(files_below(other)) == list(files_below(root))
    assert (other / "table.json").read_bytes() == (root / "table.json").read_bytes()
    shard = other / "shards/1.arrow"
    assert is_absent(shard)
    assert (shard.stat().st_size, shard.stat().st_blocks) == (50_000, 0)
    assert fetch(shard).read_bytes() == b"\x01" * 50_000
    assert not is_absent(shard)
    assert name_urls(f"{other}/x") == f"s3://runs/mirror-{tmp_path.name}/x"


def test_what_another_host_changed_or_deleted_is_seen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_host(monkeypatch, tmp_path, root)
    storage.publish(other / "shards/1.arrow", b"\x07" * 50_000)
    storage.write_json(other / "table.json", {"a": 2})
    storage.remove(other / "shards/2.arrow")
    storage.remove_tree(other / "none")
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "cache"))
    for path in root.rglob("*.*"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    monkeypatch.setattr(listing, "_CLOCK_NS", 0)
    open_mirror(root)
    assert (root / "table.json").read_bytes() == (other / "table.json").read_bytes()
    assert sorted(path.name for path in (root / "shards").iterdir()) == ["0.arrow", "1.arrow"]
    assert fetch(root / "shards/1.arrow").read_bytes() == b"\x07" * 50_000
    assert not is_absent(root / "shards/0.arrow")


def test_a_worker_that_kept_an_older_state_gets_the_new_one(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for what its host has already, and never lists the bucket; damage still shows."""
    other = other_host(monkeypatch, tmp_path, root)
    new = storage.publish(other / "shards/1.arrow", b"\x07" * 50_000)
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path / "cache"))
    shard = Shard(path="shards/1.arrow", size=50_000, hash=new.hash, content_hash=new.hash)
    assert Inputs(root).path(shard).read_bytes() == b"\x07" * 50_000
    with pytest.raises(IntegrityError, match=r"shards/1\.arrow"):
        Inputs(root).path(replace(shard, hash="0" * 32))


def test_what_is_written_makes_room_too_and_what_commands_need_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.publish(root / "journal/events.jsonl", b"{}\n")
    storage.publish(root / "table.parquet", b"PAR1" * 1000)
    storage.publish(root / "parts.parquet/000000.parquet", b"PAR1" * 1000)
    place = lease._this_place()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 20, 1 << 20, 0))
    storage.publish(root / "shards/3.arrow", bytes(50_000))
    empty = sorted(path.name for path in root.rglob("*.*") if is_absent(path))
    assert empty == ["0.arrow", "1.arrow", "2.arrow"]
    lease._this_place.cache_clear()
    assert lease._this_place() == place
    assert fetch(root / "shards/2.arrow").read_bytes() == b"\x02" * 50_000


def test_what_another_program_wrote_is_read_and_what_it_deleted_is_missing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: Any
) -> None:
    """Its objects state no hash."""
    key = f"mirror-{tmp_path.name}/shards/{{}}.arrow"
    data = b"\x01" * 50_000
    s3.client().put_object(Bucket="runs", Key=key.format(1), Body=data)
    shard, gone = (other_host(monkeypatch, tmp_path, root) / f"shards/{n}.arrow" for n in (1, 2))
    check_stored(shard, hash_bytes(data))
    with pytest.raises(IntegrityError, match=f"shards/1.arrow: changed: .*{'0' * 32}"):
        check_stored(shard, "0" * 32)
    assert is_absent(shard)
    s3.client().delete_object(Bucket="runs", Key=key.format(2))
    for check in (check_stored, verify_file, read_verified):
        with pytest.raises(IntegrityError, match=r"s3://runs/.*/shards/2.arrow: missing"):
            check(gone, "0" * 32)
    with pytest.raises(FileNotFoundError):
        gone.read_bytes()


def test_threads_pin_files_at_the_same_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "shards/0.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"it")

    def pin() -> None:
        for _ in range(400):
            fetching._pin(os.open(path, os.O_RDONLY))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(pin) for _ in range(8)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    assert len(fetching._pins) == fetching._PINNED
    handles = [handle for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink()]
    assert [os.path.realpath(handle) for handle in handles].count(str(path)) == fetching._PINNED


def test_a_full_cache_makes_room(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = other_host(monkeypatch, tmp_path, root)
    shards = [other / f"shards/{number}.arrow" for number in range(3)]
    fetch(shards[0])
    for handle, _ in fetching._pins:
        os.close(handle)
    fetching._pins.clear()
    fetch(shards[1])
    total = 64 * 2 * 50_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total, total - 1, 1))
    fetch(shards[2])
    assert [is_absent(path) for path in shards] == [True, False, False], "1 is in use"
    fetch(shards[0])
    free_room(shards[2], 0)
    assert [is_absent(path) for path in shards] == [False, True, False], "0 and 2 are"
    assert (other / "table.json").stat().st_size > 0
    assert fetch(shards[0]).read_bytes() == bytes(50_000)


@pytest.mark.parametrize("place", ["", "runs", "runs/", "runs/../x", "runs//x"])
def test_what_is_no_directory_in_a_bucket_is_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="expected s3://BUCKET/DIRECTORY"):
        mirror_path("s3", place)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="no credentials in a URL") as refused:
        open_place(Path("s3://wafermill:hunter2@runs/x"))
    assert "hunter2" not in str(refused.value)


def test_what_to_install_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    paths._bucket.cache_clear()
    with pytest.raises(ConfigError, match=r"gs://b: needs obstore; pip install 'wafermill\[gcs\]'"):
        open_place(Path("gs://b/run"))
