"""Sketches: the same find as the text gives, nothing of the text in the file, salts kept apart."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.screening.fingerprints.build import build_index
from pipeline.screening.fingerprints.find import find_passages
from pipeline.screening.fingerprints.sketch import sketch_text
from pipeline.screening.registry import load_registry
from pipeline.screening.registry.importing import ImportResult, SketchFile, sketch_work
from pipeline.screening.registry.sketches import read_salt

Bring = Callable[..., ImportResult]
SALT = bytes(range(32))
WORK = {"title_raw": "The Tin Orchard: a novel", "authors": "Ida Marsh; Otto Bell",
        "isbn13": "0306406152", "contact": "rights@example.org"}  # fmt: skip


def prose(words: int, seed: int = 0) -> str:
    """Words drawn by a hash."""
    drawn = (xxhash.xxh3_64_intdigest(f"{seed}/{i}".encode()) % 4000 for i in range(words))
    return " ".join(f"w{number}x" for number in drawn)


TEXT = prose(12_000)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def sketched(book: Path, salt: bytes = b"", **more: str) -> SketchFile:
    return sketch_work([book], book.with_suffix(".arrow"), {**WORK, **more}, salt)


@pytest.mark.parametrize("salt", [b"", SALT], ids=["bare", "salted"])
def test_a_sketch_finds_what_the_text_finds(
    book: Path, bring: Bring, tmp_path: Path, salt: bytes
) -> None:
    made = sketched(book, salt)
    assert (made.words, made.salted, made.warnings) == (12_000, bool(salt), ())
    assert made.hashes == len(sketch_text(TEXT))
    done = bring(tmp_path / "claims", made.out, salt=salt)
    assert (done.added, done.texts, done.sketches) == (1, 0, 1)
    registry = load_registry(tmp_path / "claims")
    (work,) = registry.work_list()
    assert (work.title_norm, work.authors) == ("the tin orchard", ("Ida Marsh", "Otto Bell"))
    assert (work.isbn13, work.tier, work.status) == (("9780306406157",), "excerpt", "asserted")
    assert work.work_id == made.work_id and work.text_sha256 == ""
    index = build_index(registry.references())
    excerpt = TEXT[20_000:30_000]
    found = find_passages([prose(3000, 7), f"{prose(500, 8)} {excerpt}"], index).to_pylist()
    assert [(row["row"], row["work_id"]) for row in found] == [(1, work.work_id)]
    again = bring(tmp_path / "claims", made.out, salt=salt)
    assert not again.fresh


def test_the_file_holds_hashes_and_parameters_and_no_text(book: Path) -> None:
    bare = sketched(book).out.read_bytes()
    table = pa.ipc.open_file(pa.BufferReader(bare)).read_all()
    parameters = {k.decode(): json.loads(v) for k, v in table.schema.metadata.items()}
    assert parameters == {
        "format": "wafermill sketches 1", "normalisation": 1, "k": [6], "s": [8], "salt_id": "",
    }  # fmt: skip
    salted = sketched(book, SALT).out.read_bytes()
    for data in (bare, salted):
        assert SALT[:16] not in data
        assert not any(word.encode() in data for word in TEXT.split()[::50])
        assert b"book" not in data
    hashes = [
        set(pa.ipc.open_file(pa.BufferReader(d)).read_all()["hashes"][0].as_py())
        for d in (bare, salted)
    ]
    assert len(hashes[0]) == len(hashes[1]) and not hashes[0] & hashes[1]
    assert np.uint64(max(hashes[0])) < 1 << 61


def test_parts_and_tiers(tmp_path: Path) -> None:
    parts = []
    for number, part in enumerate((prose(6000, 1), prose(6000, 2))):
        parts.append(tmp_path / f"part{number}.txt")
        parts[-1].write_text(part)
    made = sketch_work(parts, tmp_path / "a.arrow", {**WORK, "tier": "whole_book"}, b"")
    assert (made.s, made.words, made.warnings) == (512, 12_000, ()) and made.hashes < 100


def test_short_texts_are_warned_of(book: Path) -> None:
    book.write_text(prose(4999))
    assert "without a salt" in sketched(book).warnings[0]
    assert sketched(book, SALT).warnings == ()
    book.write_text(prose(5000))
    assert sketched(book).warnings == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [(b"", "its sketches are salted"), (SALT[::-1], "made with another salt")],
)
def test_a_salt_must_fit(
    book: Path, bring: Bring, tmp_path: Path, given: bytes, message: str
) -> None:
    out = sketched(book, SALT).out
    with pytest.raises(ConfigError, match=message):
        bring(tmp_path / "claims", out, salt=given)
    assert not (tmp_path / "claims").exists()


def test_a_salt_that_nothing_needs(
    book: Path, works_csv: Path, bring: Bring, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="its sketches are not salted"):
        bring(tmp_path / "claims", sketched(book).out, salt=SALT)
    with pytest.raises(ConfigError, match="none of the files holds sketches"):
        bring(tmp_path / "claims", works_csv, salt=SALT)


def test_salt_files(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"short")
    (tmp_path / "salt").write_bytes(SALT)
    assert read_salt(tmp_path / "salt") == SALT
    for name in ("short", "missing"):
        with pytest.raises(ConfigError, match=f"--salt-file .*{name}"):
            read_salt(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title_raw": ""}, "no title"),
        ({"isbn13": "0306406153"}, "neither an ISBN"),
        ({"tier": "all"}, "expected one of excerpt, whole_book"),
    ],
)
def test_descriptions_that_are_refused(book: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sketched(book, b"", **change)
    assert not book.with_suffix(".arrow").exists()


def test_texts_that_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "a.arrow"
    (tmp_path / "short.txt").write_text("Too short.")
    (tmp_path / "latin.txt").write_bytes(b"B\xe4r")
    for name, message in (("short", "too short"), ("latin", "not UTF-8"), ("gone", "cannot read")):
        with pytest.raises(InputError, match=message):
            sketch_work([tmp_path / f"{name}.txt"], out, WORK, b"")
    with pytest.raises(ConfigError, match=r"ends in \.arrow"):
        sketch_work([tmp_path / "short.txt"], tmp_path / "a.bin", WORK, b"")


def changed(data: bytes, **columns: Any) -> bytes:
    """The file with other columns or metadata."""
    table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    metadata = columns.pop("metadata", table.schema.metadata)
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, values) if values is not None else table.drop([name])
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(metadata)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


U64_LIST, U32_LIST = pa.large_list(pa.uint64()), pa.large_list(pa.uint32())
HOSTILE: dict[str, dict[str, Any]] = {
    "no title": {"title_raw": None},
    "title no string": {"title_raw": pa.array([1])},
    "no hashes": {"hashes": None},
    "hashes above the limit": {"hashes": pa.array([[1 << 63]], U64_LIST),
                               "positions": pa.array([[0]], U32_LIST)},
    "positions beyond the text": {"hashes": pa.array([[1]], U64_LIST),
                                  "positions": pa.array([[99_999]], U32_LIST)},
    "fewer positions": {"positions": pa.array([[0]], U32_LIST)},
    "null hashes": {"hashes": pa.array([None], U64_LIST)},
    "another normalisation": {"normalisation": pa.array([200], pa.uint8())},
    "another format": {"metadata": {"format": '"other"'}},
    "metadata no JSON": {"metadata": {"format": "{"}},
    "no metadata": {"metadata": {}},
}  # fmt: skip


@pytest.mark.parametrize("how", HOSTILE)
def test_files_that_are_none(book: Path, bring: Bring, tmp_path: Path, how: str) -> None:
    path = tmp_path / "sent.arrow"
    path.write_bytes(changed(sketched(book).out.read_bytes(), **HOSTILE[how]))
    with pytest.raises(InputError, match=r"sent\.arrow: "):
        bring(tmp_path / "claims", path)
    assert not (tmp_path / "claims").exists()


def test_cut_and_damaged_files(book: Path, bring: Bring, tmp_path: Path) -> None:
    data = sketched(book).out.read_bytes()
    path = tmp_path / "sent.arrow"
    for size in (8, 100, len(data) // 2, len(data) - 8):
        path.write_bytes(data[:size])
        with pytest.raises(InputError, match=r"sent\.arrow"):
            bring(tmp_path / "claims", path)


def test_sketch_only_imports_keep_no_text(book: Path, bring: Bring, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("title,author,text\nThe Tin Orchard,Ida Marsh,book.txt\n")
    done = bring(tmp_path / "claims", listed, sketch_only=True)
    assert (done.texts, done.sketches) == (0, 1)
    assert not (tmp_path / "claims/texts").exists()
    assert not bring(tmp_path / "claims", listed, sketch_only=True).fresh
    ((_, _, sketch),) = load_registry(tmp_path / "claims").references()
    assert not isinstance(sketch, str)
    assert np.array_equal(sketch.hashes, sketch_text(TEXT).hashes)
    (path,) = (tmp_path / "claims/sketches").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="damaged"):
        list(load_registry(tmp_path / "claims").references())
    path.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        load_registry(tmp_path / "claims")
