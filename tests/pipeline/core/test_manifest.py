"""Sealed documents: a damaged record is as good as none, a damaged manifest is an error."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core import manifest, storage
from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard, StageManifest, TaskRecord

SHARD = Shard(path="tokens/000000.arrow", size=12, hash="aa", content_hash="bb")
RECORD = TaskRecord("f1", (SHARD,), {"documents": 3, "sources": {"ü": [1, 2]}})
MANIFEST = StageManifest("tokenize", "f0", {"version": 1}, (RECORD, TaskRecord("f2", ())))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    manifest.write_record(tmp_path / "r.json", RECORD)
    manifest.write_manifest(tmp_path / "m.json", MANIFEST)
    assert manifest.read_record(tmp_path / "r.json") == RECORD
    assert manifest.read_manifest(tmp_path / "m.json") == MANIFEST
    assert manifest.read_manifest(tmp_path / "none.json") is None
    assert manifest.read_record(tmp_path / "none.json") is None


def test_shards_of_a_manifest() -> None:
    assert MANIFEST.shards == [SHARD]
    assert MANIFEST.find(SHARD.path) is SHARD


def test_content_counts_in_the_content_hash_and_bytes_do_not() -> None:
    def content_hash(shard: Shard) -> str:
        return StageManifest("s", "f", {}, (TaskRecord("f", (shard,)),)).content_hash

    original = content_hash(SHARD)
    assert (
        content_hash(
            Shard(path=SHARD.path, size=99, hash="other bytes", content_hash=SHARD.content_hash)
        )
        == original
    )
    assert (
        content_hash(Shard(path=SHARD.path, size=SHARD.size, hash=SHARD.hash, content_hash="cc"))
        != original
    )
    assert (
        content_hash(Shard(path="tokens/000001.arrow", size=12, hash="aa", content_hash="bb"))
        != original
    )


def test_a_flipped_bit_in_every_byte_of_a_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    manifest.write_record(path, RECORD)
    data = path.read_bytes()
    for offset in range(len(data)):
        for bit in (0, 5):
            changed = bytearray(data)
            changed[offset] ^= 1 << bit
            path.write_bytes(changed)
            assert manifest.read_record(path) is None, f"bit {bit} of byte {offset}"


def test_every_prefix_of_a_record_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    manifest.write_record(path, RECORD)
    data = path.read_bytes()
    for size in range(len(data) - 1):
        path.write_bytes(data[:size])
        assert manifest.read_record(path) is None, f"{size} bytes"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"7", b'"seal"', b"{}", b'{"seal": "x"}', b"\xff", b"[" * 50_000],
    ids=lambda data: repr(data[:8]),
)
def test_a_damaged_manifest_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"m\.json: (missing or )?damaged"):
        manifest.read_manifest(path)
    assert manifest.read_record(path) is None


def test_a_changed_manifest_names_both_seals(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    manifest.write_manifest(path, MANIFEST)
    value = json.loads(path.read_bytes())
    seal = value["seal"]
    value["fingerprint"] = "other"
    path.write_bytes(storage.canonical_json(value))
    with pytest.raises(IntegrityError, match=f"expected seal {seal}, found [0-9a-f]{{32}}"):
        manifest.read_manifest(path)


@pytest.mark.parametrize(
    "value", [{"what": 1}, {"shards": 3}, {"fingerprint": "f", "shards": [{}]}]
)
def test_a_sealed_document_of_another_kind_is_no_record(tmp_path: Path, value: dict) -> None:
    path = tmp_path / "r.json"
    manifest.write_sealed(path, value)
    assert manifest.read_record(path) is None
    with pytest.raises(IntegrityError, match=r"r\.json"):
        manifest.read_manifest(path)


@given(st.dictionaries(st.text(max_size=5) | st.sampled_from("atz"), JSON, max_size=4))
@example({"zone": math.nan, "text": '\n "seal": "",'})
@example({"a": {"seal": ""}})
def test_a_seal_is_the_hash_of_the_rest_whatever_its_order(value: dict) -> None:
    value.pop("seal", None)
    digest = xxhash.xxh3_128_hexdigest(plain_json(value))
    with TemporaryDirectory() as directory:
        for order in (value, dict(reversed(value.items()))):
            path = Path(directory, "sealed.json")
            manifest.write_sealed(path, order)
            assert path.read_bytes() == plain_json({**value, "seal": digest})
            assert plain_json(manifest.read_sealed(path)) == plain_json(value)


def plain_json(value: dict) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1).encode() + b"\n"


def test_golden_fingerprint() -> None:
    fields = {"a": 1, "b": ["x"]}
    assert manifest.fingerprint_of(fields) == "a075e1d1e94d8a4bf31ce1f891136686"
    assert manifest.fingerprint_of(dict(reversed(fields.items()))) == manifest.fingerprint_of(
        fields
    )


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": (1, 2)}, {"a": [1, 2]}, []),
        ({"a": 1}, {}, ["a"]),
        ({"z": {"y": {"x": 1}}, "b": 0}, {"z": {"y": {"x": 2}}, "b": 1}, ["b", "z.y.x"]),
        ({"a": {"b": 1}}, {"a": 1}, ["a"]),
    ],
)
def test_changed_fields(old: dict, new: dict, names: list[str]) -> None:
    assert manifest.changed_fields(old, new) == names
