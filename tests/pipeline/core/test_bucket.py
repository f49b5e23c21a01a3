"""Objects in a bucket: what conditional writes and reads promise, with and without faults."""

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import bucket as buckets
from pipeline.core import lease
from pipeline.core.bucket import Bucket, ConflictError
from pipeline.core.errors import ConfigError, ResourceError
from pipeline.core.hashes import hash_bytes


@pytest.fixture
def bucket(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "_FIRST_PAUSE", 0.01)
    return Bucket("s3", "runs")


def put(bucket: Bucket, key: str, data: bytes, replaces: Any = "any") -> buckets.Version:
    return bucket.put(key, data, hash_bytes(data), replaces)


def read_if_there(bucket: Bucket, key: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        return bucket.read(key)[0]
    return None


def test_an_object_is_created_once_and_replaced_only_as_it_was_seen(bucket: Bucket) -> None:
    first = put(bucket, "once", b"one", "none")
    with pytest.raises(ConflictError):
        put(bucket, "once", b"two", "none")
    assert put(bucket, "once", b"one", "none") == first, "these very bytes are there"
    second = put(bucket, "once", b"two", first)
    with pytest.raises(ConflictError):
        put(bucket, "once", b"three", first)
    with pytest.raises(ConflictError):
        put(bucket, "never", b"one", second)
    assert bucket.read("once")[0] == b"two"


def test_reads_listings_and_deletions(bucket: Bucket, tmp_path: Path) -> None:
    large = random.Random(1).randbytes(9 << 20)
    (tmp_path / "large").write_bytes(large)
    bucket.put("tree/large", tmp_path / "large", hash_bytes(large))
    put(bucket, "tree/small", b"")
    put(bucket, "tree2", b"x")
    listed = bucket.list_objects("tree/")
    assert [(o.key, o.size) for o in listed] == [("tree/large", 9 << 20), ("tree/small", 0)]
    assert abs(listed[0].modified - time.time()) < 60
    pieces: list[bytes] = []
    bucket.stream("tree/large", lambda chunks: pieces.extend(bytes(c) for c in chunks))
    assert b"".join(pieces) == large
    there = bucket.look_up("tree/large")
    assert there is not None
    assert (there[0], there[1]) == (listed[0], hash_bytes(large))
    bucket.delete(["tree/large", "tree/small", "tree/none"])
    assert bucket.list_objects("tree/") == []
    assert bucket.look_up("tree/large") is None
    with pytest.raises(FileNotFoundError):
        bucket.read("tree/large")


def test_with_faults_every_write_happens_once_and_every_read_is_whole(
    bucket: Bucket, s3: Any
) -> None:
    """A counter: each state names the one before it, so a write that was lost, or made twice on
    top of another, would show."""
    s3.set_faults(0.4, seed=3)
    version: Any = "none"
    for number in range(60):
        data = f"{number} ".encode() * 2000
        version = put(bucket, "counter", data, version)
        assert buckets.ask_often(lambda: read_if_there(bucket, "counter")) == data
        with pytest.raises(ConflictError):
            put(bucket, "counter", b"another", "none")
    counts = s3.count_faults()
    assert min(counts[kind] for kind in ("refused", "lost", "cut", "late")) > 3, counts


def test_a_large_object_is_sent_in_parts_whatever_fails(
    bucket: Bucket, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_PART_BYTES", 5 << 20)
    for number in range(4):
        data = random.Random(number).randbytes(12 << 20)
        (tmp_path / "large").write_bytes(data)
        s3.set_faults(0.15, seed=number)
        bucket.put("parts/large", tmp_path / "large", hash_bytes(data))
        s3.set_faults(0)
        (version,) = bucket.list_objects("parts/")
        assert version.etag.rstrip('"').endswith("-3"), "of three parts"
        assert bucket.look_up("parts/large") == (version, hash_bytes(data))
        assert s3.read("parts/") == {"large": data}


def test_a_store_that_never_answers_and_a_bucket_that_is_not_there_are_named(
    bucket: Bucket, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"s3://nowhere/a: there is no bucket nowhere"):
        put(Bucket("s3", "nowhere"), "a", b"")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(buckets, "_ATTEMPTS", 3)
    with pytest.raises(ResourceError, match="s3://runs/a: the store does not answer") as raised:
        put(Bucket("s3", "runs"), "a", b"")
    assert "hunter2" not in str(raised.value)


Take = Callable[[str], lease.Lease]


@pytest.fixture
def take(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Take:
    """Take one lease from a place of this name, for half a second."""
    monkeypatch.setattr(lease, "SECONDS", 0.5)
    key = f"{request.node.name}/.lock"
    return lambda place: lease.take_lease(bucket, key, f"pid 1 in {place}", place)


def test_a_lease_has_one_holder(take: Take) -> None:
    with take("a").beating():
        for _ in range(2):
            with pytest.raises(ResourceError, match=r"in use by pid 1 in a; wait for it"):
                take("b")
            time.sleep(0.6)  # a heartbeat keeps it
    assert take("b").claim.token == 2, "given back: free at once"


def test_a_lease_left_behind_is_free_in_its_own_place_at_once_elsewhere_later(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert take("a").claim.token == 1
    time.sleep(0.6)
    began = time.monotonic()
    assert take("b").claim.token == 2
    assert time.monotonic() - began >= 0.5, "watched for its whole time"
    monkeypatch.setattr(lease, "SECONDS", 60.0)
    assert take("b").claim.token == 3
    began = time.monotonic()
    with pytest.raises(ResourceError, match="in use by pid 1 in b"):
        take("a")
    assert take("b").claim.token == 4
    assert time.monotonic() - began < 0.5


def test_a_holder_that_was_too_slow_stops(take: Take) -> None:
    first = take("a")
    time.sleep(1.6)
    with pytest.raises(ResourceError, match="another process may have taken over"):
        first.check()
    with take("b").beating(), first.beating():
        time.sleep(0.3)
        with pytest.raises(ResourceError, match="now in use by pid 1 in b"):
            first.check()


def test_two_who_take_a_lease_at_once_do_not_both_get_it(
    bucket: Bucket, take: Take, request: pytest.FixtureRequest
) -> None:
    key = f"{request.node.name}/.lock"
    held = take("a")
    claim, stored = lease.read_claim(bucket, key) or pytest.fail("no lease")
    other = replace(claim, holder="other", place="b", token=2)
    put(bucket, key, other.encode(), stored.version)

    def check_for_seconds() -> None:
        for _ in range(200):  # the next beat finds out
            time.sleep(0.05)
            held.check()

    with held.beating(), pytest.raises(ResourceError, match="now in use by other"):
        check_for_seconds()
