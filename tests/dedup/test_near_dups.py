"""Decisions on the near_dups corpus equal a plain datasketch implementation, one by one, and its
labels: precision 1 and the recall of the bands.

The plain one keeps every 104-byte band key in a dictionary, as SlimPajama's scripts do, and visits
documents by (decision rank, source priority, doc_key).
"""

import json
import re
import string
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import pyarrow.parquet as pq
import pytest
from datasketch import MinHash, MinHashLSH
from datasketch.hashfunc import sha1_hash32

import dedup
import pipeline
from dedup.presets import PRESETS, detection_probability
from pipeline.config.prep import Config
from pipeline.core import zstd
from tests.slow import mark_slow

pytestmark = pytest.mark.shared_data

_DELETE = str.maketrans("", "", string.punctuation)
QUICK = 600
"""Documents in the quick test; the slow one takes all 3,786."""


def clean(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower().translate(_DELETE).strip())


def minhash_of(text: str) -> MinHash:
    normal = clean(text)
    minhash = MinHash(num_perm=128, seed=1, hashfunc=sha1_hash32, scheme="legacy")
    minhash.update_batch([normal[i : i + 13].encode() for i in range(len(normal) - 12)])
    return minhash


def shingles_of(text: str) -> set[str]:
    normal = clean(text)
    return {normal[i : i + 13] for i in range(len(normal) - 12)}


def band_edges(minhashes: dict[bytes, MinHash]) -> dict[bytes, set[bytes]]:
    """Candidate neighbours by the 104-byte keys of SlimPajama's scripts, in plain dictionaries."""
    buckets: dict[tuple[int, bytes], list[bytes]] = defaultdict(list)
    for key, minhash in minhashes.items():
        for b in range(9):
            rows = minhash.hashvalues[b * 13 : b * 13 + 13]
            buckets[b, bytes(rows.byteswap().data)].append(key)
    edges: dict[bytes, set[bytes]] = {key: set() for key in minhashes}
    for members in buckets.values():
        for key in members:
            edges[key] |= set(members) - {key}
    return edges


def components(edges: dict[bytes, set[bytes]], visit: list[bytes]) -> dict[bytes, bytes]:
    """Document -> smallest document of its component, for all but those."""
    first: dict[bytes, bytes] = {}
    for start in visit:
        if start in first:
            continue
        stack = [start]
        while stack:
            key = stack.pop()
            if key not in first:
                first[key] = start
                stack += edges[key]
    return {key: start for key, start in first.items() if key != start}


def verified(
    edges: dict[bytes, set[bytes]], visit: list[bytes], texts: dict[bytes, str]
) -> dict[bytes, bytes]:
    """The greedy selection over candidates whose sets of shingles are alike by 0.8 and more."""
    order = {key: place for place, key in enumerate(visit)}
    sets = {key: shingles_of(texts[key]) for key in texts if edges[key]}
    representative: dict[bytes, bytes] = {}
    for key in visit:
        kept = [k for k in edges[key] if order[k] < order[key] and k not in representative]
        alike = [k for k in kept if len(sets[k] & sets[key]) >= 0.8 * len(sets[k] | sets[key])]
        if alike:
            representative[key] = min(alike, key=order.__getitem__)
    return representative


def lsh_edges(minhashes: dict[bytes, MinHash]) -> dict[bytes, set[bytes]]:
    """Candidate neighbours by datasketch's own MinHashLSH."""
    lsh = MinHashLSH(num_perm=128, params=(9, 13))
    for key, minhash in minhashes.items():
        lsh.insert(key, minhash)
    return {key: set(lsh.query(minhash)) - {key} for key, minhash in minhashes.items()}


def prepare(lines: list[bytes], directory: Path, dedup: dict[str, Any]) -> Path:
    raw = directory / "docs.jsonl"
    raw.write_bytes(b"\n".join(lines) + b"\n")
    value = {
        "name": "near", "inputs": [{"name": "near", "path": str(raw)}],
        "dedup": dedup, "pack": {"max_sequence_length": 1024},
    }  # fmt: skip
    pipeline.run(Config.model_validate_json(json.dumps(value)), directory / "run", 0)
    return directory / "run"


def check(lines: list[bytes], directory: Path, verify: str, prefer: str = "") -> int:
    """A run with SlimPajama's hash and permutations against the plain implementation."""
    priority = ["Github", "Wikipedia (en)"]
    options = {"preset": "slimpajama_exact", "verify": verify, "source_priority": priority}
    options["prefer"] = [prefer] if prefer else []
    run = prepare(lines, directory, options)
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

    def rank(key: bytes) -> tuple[int, int, int, bytes]:
        row = by_key[key]
        source = row["source"]
        place = priority.index(source) if source in priority else len(priority)
        length = {"": 0, "longest": -1, "shortest": 1}[prefer] * len(texts[key].encode())
        return ranks[row["decision"]], place, length, key

    edges = band_edges({key: minhash_of(text) for key, text in texts.items()})
    visit = sorted(texts, key=rank)
    expected = components(edges, visit) if verify == "none" else verified(edges, visit, texts)
    found = {k: by_key[k]["representative"] for k in texts if by_key[k]["representative"] != k}
    assert found == expected
    states = {"allow": "duplicate", "review": "duplicate", "quarantine": "quarantined"}
    for key in texts:
        row = by_key[key]
        end = states[row["decision"]] if key in expected or ranks[row["decision"]] > 1 else "kept"
        assert row["state"] == end
    for row in pq.read_table(run / "clusters.parquet").to_pylist():
        if verify == "exact":
            a, b = shingles_of(texts[row["kept"]]), shingles_of(texts[row["member"]])
            assert row["jaccard"] == len(a & b) / len(a | b) >= 0.8
            assert row["bands"]
    return len(expected)


@pytest.fixture(scope="module")
def lines(shared_data: Path) -> list[bytes]:
    data = zstd.decompress((shared_data / "near_dups/docs.jsonl.zst").read_bytes())
    return data.rstrip(b"\n").split(b"\n")


@pytest.mark.parametrize("verify", mark_slow(["none", "exact"], "none"))
def test_decisions_quick(lines: list[bytes], tmp_path: Path, verify: str) -> None:
    """Whole families stand together in the file, so a stretch of it has its duplicates."""
    assert check(lines[:QUICK], tmp_path, verify) > 40


@pytest.mark.parametrize("prefer", mark_slow(["longest", "shortest"], "shortest"))
def test_preferences_quick(lines: list[bytes], tmp_path: Path, prefer: str) -> None:
    assert check(lines[:QUICK], tmp_path, "exact", prefer) > 40


@pytest.mark.slow
@pytest.mark.parametrize("verify", ["none", "exact"])
def test_decisions(lines: list[bytes], tmp_path: Path, verify: str) -> None:
    assert len(lines) == 3786
    assert check(lines, tmp_path, verify) > 500


@pytest.mark.parametrize("count", mark_slow([QUICK, 3786], 3786))
def test_none_equals_the_clusters_of_datasketch(lines: list[bytes], count: int) -> None:
    """`dedup.find_duplicates` against datasketch's own MinHashLSH."""
    texts = [json.loads(line)["text"] for line in lines[:count]]
    assert len(texts) == count
    signatures = dedup.signatures(texts, preset="slimpajama_exact").astype(np.uint64)
    names = [b"%05d" % row for row in range(len(texts))]
    minhashes = {
        name: MinHash(hashvalues=values, scheme="legacy")
        for name, values in zip(names, signatures, strict=True)
    }
    expected = components(lsh_edges(minhashes), names)
    found = dedup.find_duplicates(texts, preset="slimpajama_exact", verify="none").to_pylist()
    assert {names[r["row"]]: names[r["representative"]] for r in found} == expected
    assert len(expected) > 40
    assert all(row["jaccard"] is None for row in found)


@dataclass(frozen=True)
class Labels:
    """The texts, and the true similarity of every pair of rows of 0.1 and more."""

    texts: list[str]
    jaccard: dict[tuple[int, int], float]

    def of(self, a: int, b: int) -> float:
        return self.jaccard.get((min(a, b), max(a, b)), 0.0)


@pytest.fixture(scope="module")
def labels(lines: list[bytes], shared_data: Path) -> Labels:
    documents = [json.loads(line) for line in lines]
    row = {document["id"]: i for i, document in enumerate(documents)}
    jaccard = {}
    for pair in pq.read_table(shared_data / "near_dups/pairs.parquet").to_pylist():
        a, b = sorted((row[pair["id_a"]], row[pair["id_b"]]))
        jaccard[a, b] = pair["jaccard"]
    return Labels([document["text"] for document in documents], jaccard)


@pytest.mark.parametrize("preset", ["slimpajama", "slimpajama_exact", "fineweb", "strict"])
def test_precision_is_one_and_recall_is_the_theory(labels: Labels, preset: str) -> None:
    """Every similarity reported is the true one; pairs are found as often as the bands promise."""
    found = dedup.find_duplicates(labels.texts, preset=preset, verify="exact", threshold=0.8)
    dropped = {r["row"]: r["representative"] for r in found.to_pylist()}
    for row in found.to_pylist():
        assert row["jaccard"] == labels.of(row["row"], row["representative"]) >= 0.8
        assert row["representative"] not in dropped
    recipe = PRESETS[preset]
    # A document with exactly one earlier partner alike, which stays, is dropped if they meet.
    partners: dict[int, list[int]] = defaultdict(list)
    for (a, b), similarity in labels.jaccard.items():
        if similarity >= 0.8:
            partners[b].append(a)
    alone = [(b, p[0]) for b, p in partners.items() if len(p) == 1 and p[0] not in partners]
    chance = [detection_probability(labels.of(a, b), recipe.bands, recipe.rows) for b, a in alone]
    deviation = np.sqrt(sum(p * (1 - p) for p in chance))
    hits = sum(b in dropped for b, _ in alone)
    assert len(alone) > 300
    assert abs(hits - sum(chance)) <= 3.5 * deviation + 0.5


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
