"""`prep dedup --substrings`: records whose texts lose repeated passages and nothing else."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core import zstd
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork
from tests.pipeline.raw_shards import BOM, OPTIONS, Prep, Raw

LEAST = 100
NOTICE = (
    'Ünïcode and "quotes" \\ are part of this notice, which stands in every document of the batch '
    "and is long enough to be cut.\n"
)


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory, write_prose: Callable[..., str]) -> Raw:
    """Every text begins with a notice; read only."""

    def prose(*arguments: Any) -> str:
        return NOTICE + write_prose(*arguments)

    return Raw(tmp_path_factory.mktemp("raw") / "corpus", prose)


@pytest.fixture(scope="module")
def kept(raw: Raw, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of it; read only."""
    out = tmp_path_factory.mktemp("kept") / "kept"
    ended = prep_in_fork("dedup", raw.root, "--out", out, "--substrings", LEAST, *OPTIONS)
    assert ended.code == 0, ended.err
    return out


@pytest.fixture(scope="module")
def whole(raw: Raw, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without --substrings."""
    out = tmp_path_factory.mktemp("whole") / "whole"
    ended = prep_in_fork("dedup", raw.root, "--out", out, *OPTIONS)
    assert ended.code == 0, ended.err
    return out


UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "a.jsonl": bytes, "b.jsonl.zst": zstd.decompress, "sub/c.jsonl.gz": gzip.decompress,
}  # fmt: skip


def lines_of(out: Path, path: str) -> list[bytes]:
    return UNPACK[path]((out / "records" / path).read_bytes()).split(b"\n")


def texts_by_place(out: Path) -> dict[tuple[str, int], str]:
    """What every kept text is without its cuts, by file and number of the kept record there."""
    cuts: dict[bytes, list[dict[str, Any]]] = {}
    for cut in pq.read_table(out / "lines.parquet").to_pylist():
        cuts.setdefault(cut["doc_key"], []).append(cut)
    paths = pq.read_table(out / "sources.parquet")["path"].to_pylist()
    found: dict[tuple[str, int], str] = {}
    counts: dict[str, int] = {}
    texts = {}
    import pyarrow as pa

    for shard in sorted((out / "documents").iterdir()):
        table = pa.ipc.open_file(shard).read_all()
        texts |= dict(zip(table["doc_key"].to_pylist(), table["text"].to_pylist(), strict=True))
    for row in pq.read_table(out / "documents.parquet").to_pylist():
        if row["state"] != "kept":
            continue
        text = texts[row["doc_key"]].encode()
        gone = {
            n
            for cut in cuts.get(row["doc_key"], ())
            for n in range(cut["byte_start"], cut["byte_end"])
        }
        path = paths[row["path_id"]]
        left = bytes(byte for n, byte in enumerate(text) if n not in gone).decode()
        found[path, counts.setdefault(path, 0)] = left
        counts[path] += 1
    return found


def test_texts_lose_their_repeats_and_records_nothing_else(kept: Path, whole: Path) -> None:
    expected = texts_by_place(kept)
    changed = 0
    for path in UNPACK:
        before, after = lines_of(whole, path), lines_of(kept, path)
        assert len(before) == len(after)
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            if not one:
                assert not other
                continue
            records = [json.loads(line.removeprefix(BOM)) for line in (one, other)]
            assert records[1]["text"] == expected[path, number]
            assert list(records[0]) == list(records[1])
            assert (records[0] | {"text": ""}) == (records[1] | {"text": ""})
            assert (one == other) == (records[0]["text"] == records[1]["text"])
            assert one.startswith(BOM) == other.startswith(BOM)
            changed += one != other
    tables = [pq.read_table(out / "records/sub/d.parquet") for out in (whole, kept)]
    assert tables[0].schema == tables[1].schema
    assert tables[0].drop_columns("text").equals(tables[1].drop_columns("text"))
    texts = tables[1]["text"].to_pylist()
    assert texts == [expected["sub/d.parquet", n] for n in range(len(texts))]
    changed += sum(a != b for a, b in zip(texts, tables[0]["text"].to_pylist(), strict=True))
    assert changed == len(expected) - 4  # the notice stays once, and three texts are without it
    assert sum(NOTICE in text for text in expected.values()) == 1


def test_workers_change_nothing(
    raw: Raw, kept: Path, tmp_path: Path, prep_process: Callable[..., Any]
) -> None:
    again = tmp_path / "again"
    options = ("--substrings", LEAST, "--workers", 2, "--max-bad-share", "20 %")
    ended = prep_process("dedup", *raw.files, "--out", again, *options)
    assert ended.code == 0, ended.err
    for path in sorted(p.relative_to(kept) for p in (kept / "records").rglob("*.*")):
        assert (again / path).read_bytes() == (kept / path).read_bytes()
    tables = [pq.read_table(out / "lines.parquet") for out in (again, kept)]
    assert len(tables[0]) and tables[0].equals(tables[1])


def test_upkeep(kept: Path) -> None:
    verify_run(kept)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--substrings", 10], 2, "--substrings: expected "),
        (
            ["--substrings", 200],
            3,
            "a.txt: repeated passages cannot be cut from records of the format text",
        ),
    ],
)
def test_errors(options: list[object], code: int, message: str, tmp_path: Path, prep: Prep) -> None:
    (tmp_path / "a.txt").write_text("one document")
    ended = prep("dedup", tmp_path / "a.txt", "--out", tmp_path / "out", "--workers", 0, *options)
    assert ended.code == code and message in ended.err, ended.err


def test_explain_says_what_was_cut_and_where_it_stays(kept: Path, prep: Prep) -> None:
    cut = pq.read_table(kept / "lines.parquet").to_pylist()[0]
    key, first = cut["doc_key"].hex(), cut["first"].hex()
    ended = prep("explain", kept, key)
    assert ended.code == 0, ended.err
    span = f"bytes {cut['byte_start']} to {cut['byte_end']}, a passage that is first in {first}"
    assert span in ended.out and f"from byte {cut['first_start']} on" in ended.out
    found = json.loads(prep("explain", kept, key, "--json").out)
    assert found["cuts"][0]["first"] == first and found["cuts_total"] == len(found["cuts"])
    assert json.loads(prep("explain", kept, first, "--json").out)["cuts"] == []


def test_what_is_printed(raw: Raw, kept: Path, prep: Prep) -> None:
    again = prep("dedup", raw.root, "--out", kept, "--substrings", LEAST, *OPTIONS)
    cuts = pq.read_table(kept / "lines.parquet")
    documents = len(cuts["doc_key"].unique())
    assert f"repeated passages: {len(cuts)} cut from {documents} documents, 0.00 MB" in again.out
    assert "lines.parquet/" in again.out
    as_json = prep("dedup", raw.root, "--out", kept, "--substrings", LEAST, *OPTIONS, "--json")
    counted = json.loads(as_json.out)["cut"]
    assert (counted["passages"], counted["documents"]) == (len(cuts), documents)
