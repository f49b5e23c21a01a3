"""Decisions on the near_dups corpus equal a plain datasketch implementation, one by one.

The plain one keeps every 104-byte band key in a dictionary, as SlimPajama's scripts do, and visits
documents by (decision rank, source priority, doc_key).
"""

import json
import re
import string
from collections import defaultdict
from pathlib import Path
from typing import Any

import ftfy
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash, MinHashLSH
from datasketch.hashfunc import sha1_hash32

import pipeline
from pipeline.config import Config
from pipeline.sources.streams import zstd

pytestmark = pytest.mark.shared_data

_DELETE = str.maketrans("", "", string.punctuation)
QUICK = 900
"""Documents in the quick test; the slow one takes all 3,786."""


def clean(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower().translate(_DELETE).strip())


def minhash_of(text: str) -> MinHash:
    normal = clean(text)
    minhash = MinHash(num_perm=128, seed=1, hashfunc=sha1_hash32, scheme="legacy")
    minhash.update_batch([normal[i : i + 13].encode() for i in range(len(normal) - 12)])
    return minhash


def plain_decisions(
    texts: dict[bytes, str], visit: list[bytes]
) -> tuple[dict[bytes, bytes], dict[bytes, MinHash]]:
    """Dropped document -> its representative; and every signature."""
    minhashes = {key: minhash_of(texts[key]) for key in texts}
    order = {key: place for place, key in enumerate(visit)}
    kept_by_band: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
    representative = {}
    for key in visit:
        values = minhashes[key].hashvalues
        bands = [(b, bytes(values[b * 13 : b * 13 + 13].byteswap().data)) for b in range(9)]
        edges = [other for band in bands for other in kept_by_band[band]]
        if edges:
            representative[key] = min(edges, key=order.__getitem__)
        else:
            for band in bands:
                kept_by_band[band].append(key)
    return representative, minhashes


def lsh_edges(minhashes: dict[bytes, MinHash]) -> dict[bytes, set[bytes]]:
    """Candidate neighbours by datasketch's own MinHashLSH."""
    lsh = MinHashLSH(num_perm=128, params=(9, 13))
    for key, minhash in minhashes.items():
        lsh.insert(key, minhash)
    return {key: set(lsh.query(minhash)) - {key} for key, minhash in minhashes.items()}


def prepare(lines: list[bytes], directory: Path, priority: list[str]) -> Path:
    raw = directory / "docs.jsonl"
    raw.write_bytes(b"\n".join(lines) + b"\n")
    value = {
        "name": "near", "inputs": [{"name": "near", "path": str(raw)}],
        "dedup": {"source_priority": priority}, "pack": {"max_sequence_length": 1024},
    }  # fmt: skip
    pipeline.run(Config.model_validate_json(json.dumps(value)), directory / "run", 0)
    return directory / "run"


def check(lines: list[bytes], directory: Path) -> int:
    priority = ["Github", "Wikipedia (en)"]
    run = prepare(lines, directory, priority)
    rows = pq.read_table(run / "documents.parquet").to_pylist()
    texts: dict[bytes, str] = {}
    for row, line in zip(rows, lines, strict=True):
        text = ftfy.fix_text(json.loads(line)["text"], normalization="NFC")
        if len(clean(text)) < 200:
            assert (row["state"], row["reason"]) == ("dropped", "too_short")
        else:
            texts[row["doc_key"]] = text
    by_key: dict[bytes, dict[str, Any]] = {row["doc_key"]: row for row in rows}
    ranks = {"allow": 0, "review": 1, "quarantine": 2, "drop": 3}

    def rank(key: bytes) -> tuple[int, int, bytes]:
        row = by_key[key]
        source = row["source"]
        place = priority.index(source) if source in priority else len(priority)
        return ranks[row["decision"]], place, key

    expected, minhashes = plain_decisions(texts, sorted(texts, key=rank))
    found = {k: by_key[k]["representative"] for k in texts if by_key[k]["representative"] != k}
    assert found == expected
    states = {"allow": "duplicate", "review": "duplicate", "quarantine": "quarantined"}
    for key in texts:
        row = by_key[key]
        end = states[row["decision"]] if key in expected or ranks[row["decision"]] > 1 else "kept"
        assert row["state"] == end
    edges = lsh_edges(minhashes)
    assert all(edges[key] & {stands_for} for key, stands_for in expected.items())
    kept = set(texts) - set(expected)
    assert all(not edges[key] & kept for key in kept), "no two kept ones are candidates"
    return len(expected)


@pytest.fixture(scope="module")
def lines(shared_data: Path) -> list[bytes]:
    data = zstd.decompress((shared_data / "near_dups/docs.jsonl.zst").read_bytes())
    return data.rstrip(b"\n").split(b"\n")


def test_decisions_quick(lines: list[bytes], tmp_path: Path) -> None:
    """Whole families stand together in the file, so a stretch of it has its duplicates."""
    assert check(lines[:QUICK], tmp_path) > 40


@pytest.mark.slow
def test_decisions(lines: list[bytes], tmp_path: Path, shared_data: Path) -> None:
    assert len(lines) == 3786
    assert check(lines, tmp_path) > 500


@pytest.mark.slow
def test_recall_follows_the_preset(lines: list[bytes], tmp_path: Path, shared_data: Path) -> None:
    """Pairs of Jaccard 0.95 and more are found; pairs below 0.5 almost never."""
    keys = {json.loads(line)["id"]: minhash_of(json.loads(line)["text"]) for line in lines}
    names = {str(key).encode(): minhash for key, minhash in keys.items()}
    edges = lsh_edges(names)
    pairs = pq.read_table(shared_data / "near_dups/pairs.parquet").to_pylist()
    near = [p for p in pairs if p["jaccard"] >= 0.95]
    far = [p for p in pairs if p["jaccard"] < 0.5]
    hits = sum(str(p["id_b"]).encode() in edges[str(p["id_a"]).encode()] for p in near)
    wrong = sum(str(p["id_b"]).encode() in edges[str(p["id_a"]).encode()] for p in far)
    assert hits / len(near) > 0.99
    assert wrong / len(far) < 0.001
