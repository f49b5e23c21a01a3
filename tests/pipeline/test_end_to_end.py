"""A whole run of the small corpus, checked against what was written into it.

Everything expected is worked out here from the raw records with plain json, ftfy, `tokenizers` and
h5py; nothing is read from the run but what it published.
"""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

import pipeline
from pipeline.core import rng, zstd
from pipeline.hdf5.format import rows_per_chunk
from pipeline.tokenizers.definition import decode_bytes
from tests.pipeline.plain_reading import (
    EOS,
    GPT2,
    Shard,
    fixed,
    key_of,
    read_shard,
    tokens_of,
)

MSL = 128
BAD = {"bad_json", "no_text", "not_utf8", "surrogate", "text_not_string", "not_object", "bad_meta"}
SHORT = {"short", "empty"}
QUARANTINED = {
    "books3": "origin-listed", "sibling": "origin-listed", "marker": "marker-download",
}  # fmt: skip


@pytest.fixture(scope="session")
def shards(small_run: Any) -> dict[str, list[Shard]]:
    found: dict[str, list[Shard]] = {}
    for split in ("train", "validation"):
        directory = small_run.directory / "hdf5" / split
        found[split] = [read_shard(path) for path in sorted(directory.glob("*.h5"))]
    return found


@pytest.fixture(scope="session")
def documents(small_run: Any) -> dict[bytes, dict[str, Any]]:
    return {row["doc_key"]: row for row in small_run.table("documents.parquet").to_pylist()}


@pytest.fixture(scope="session")
def made(small_run: Any) -> dict[bytes, Any]:
    return {key_of(record): record for record in small_run.corpus.records}


def test_one_row_per_record(documents: dict[bytes, Any], made: dict[bytes, Any]) -> None:
    assert set(documents) == set(made)
    assert len(made) == 205


def test_lines_and_offsets(
    small_run: Any, documents: dict[bytes, Any], made: dict[bytes, Any]
) -> None:
    """`line` is the line of the raw file; offset and length are of its decompressed bytes."""
    sources = small_run.table("sources.parquet").to_pylist()
    contents: dict[int, bytes] = {}
    for source in sources:
        path = small_run.corpus.root / "raw" / source["input"] / source["path"]
        data = path.read_bytes()
        assert source["size"] == len(data) and source["hash"] == xxhash.xxh3_128_hexdigest(data)
        unpack = {".zst": zstd.decompress, ".gz": gzip.decompress}.get(path.suffix, lambda d: d)
        contents[source["path_id"]] = unpack(data)
    for key, row in documents.items():
        record, source = made[key], sources[row["path_id"]]
        assert (source["input"], source["path"]) == (record.input, record.path)
        assert row["source"] == record.source and row["licence"] == record.licence
        if record.line == 0:
            assert (row["line"], row["byte_offset"]) == (0, record.ordinal)
            continue
        raw = contents[row["path_id"]]
        assert row["line"] == record.line
        assert raw.split(b"\n")[row["line"] - 1] == record.raw
        assert raw[row["byte_offset"] :][: row["byte_length"]] == record.raw


def test_ends_and_reasons(documents: dict[bytes, Any], made: dict[bytes, Any]) -> None:
    """Every record has the one end that its kind calls for."""
    for key, record in made.items():
        row = documents[key]
        end = row["state"], row["reason"]
        if record.kind in BAD:
            assert end == ("bad_record", record.kind)
        elif record.kind in SHORT:
            assert end == ("dropped", "too_short")
        elif record.kind in QUARANTINED:
            assert end == ("quarantined", QUARANTINED[record.kind])
            assert row["decision"] == "quarantine"
        elif record.kind not in ("near", "exact"):
            assert end == ("kept", "")
        if record.kind == "mention":
            assert (row["decision"], row["rule"]) == ("review", "marker-mention")
    assert Counter(row["state"] for row in documents.values()) == {
        "kept": 176, "duplicate": 8, "quarantined": 3, "dropped": 10, "bad_record": 8,
    }  # fmt: skip


def test_families(small_run: Any, documents: dict[bytes, Any], made: dict[bytes, Any]) -> None:
    """Of each family one stays: the best by source priority, then document key."""
    order = {"Wiki": 0, "Code": 1}
    for kind in ("near", "exact"):
        family = [key for key, record in made.items() if record.kind == kind]
        best = min(family, key=lambda k: (order.get(made[k].source, 2), k))
        for key in family:
            row = documents[key]
            assert row["representative"] == best
            assert row["state"] == ("kept" if key == best else "duplicate")
            how = "exact" if made[key].text == made[best].text else "near"
            assert row["reason"] == ("" if key == best else f"{how}_duplicate")
            assert row["split"] == documents[best]["split"], "near-duplicates never straddle"
    clusters = small_run.table("clusters.parquet").to_pylist()
    pairs = {(row["kept"], row["member"]) for row in clusters}
    stands = {(r["representative"], k) for k, r in documents.items() if r["state"] != "bad_record"}
    assert pairs == {(a, b) for a, b in stands if a is not None and a != b}
    for row in clusters:
        assert set(row["bands"]) <= set(range(9))
        assert row["jaccard"] >= 0.8 and row["index"] == ""


def test_a_copy_of_a_quarantined_document_is_quarantined(
    small_run: Any, documents: dict[bytes, Any], made: dict[bytes, Any]
) -> None:
    keys = {record.kind: key for key, record in made.items()}
    book, sibling = documents[keys["books3"]], documents[keys["sibling"]]
    assert made[keys["books3"]].text == made[keys["sibling"]].text
    assert book["state"] == sibling["state"] == "quarantined"
    assert book["representative"] == keys["sibling"], "a document of better rank stands for it"
    assert book["licence"] == "mit", "a declared licence clears nothing"
    decisions = {row["doc_key"]: row for row in small_run.table("decisions.parquet").to_pylist()}
    own, taken_over = decisions[keys["books3"]], decisions[keys["sibling"]]
    assert own["propagated_from"] is None
    assert taken_over["propagated_from"] == keys["books3"]
    assert taken_over["rule"] == own["rule"] and own["reason"] in taken_over["reason"]
    assert f"same cluster as {keys['books3'].hex()}, Jaccard 1.000" in taken_over["reason"]


def test_clean_sibling_survives_where_nothing_spreads(
    corpus: Any, made: dict[bytes, Any], tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\n"
        "rules:\n"
        "  - {id: listed, when: {origin.family: books3}, decision: quarantine, reason: listed}\n"
        "propagate: {mode: none}\n"
    )
    pipeline.run(corpus.config, tmp_path / "run", 0, overrides=(f"screen.policy={policy}",))
    documents = {
        row["doc_key"]: row for row in pq.read_table(tmp_path / "run/documents.parquet").to_pylist()
    }
    keys = {record.kind: key for key, record in made.items()}
    book, sibling = documents[keys["books3"]], documents[keys["sibling"]]
    assert sibling["state"] == "kept" and sibling["decision"] == "allow"
    assert book["state"] == "quarantined" and book["representative"] == keys["sibling"]


def test_decisions_carry_reasons(small_run: Any, made: dict[bytes, Any]) -> None:
    decisions = {row["doc_key"]: row for row in small_run.table("decisions.parquet").to_pylist()}
    evidence = {row["evidence_id"]: row for row in small_run.table("evidence.parquet").to_pylist()}
    kinds = {made[key].kind for key in decisions}
    assert kinds == {"books3", "sibling", "marker", "mention"}
    for key, row in decisions.items():
        assert row["reason"] and row["rule"] and row["evidence"]
        for number in row["evidence"]:
            found, about = evidence[number], row["propagated_from"] or key
            text = fixed(made[about]).encode().lower()
            start = found["byte_offset"]
            marked = text[start : start + found["byte_length"]].decode()
            assert found["doc_key"] == about
            assert found["detector"] == "origin" or marked == found["seen"].lower()


def test_drops_list_file_and_excerpt(small_run: Any, made: dict[bytes, Any]) -> None:
    rows = [r for p in sorted((small_run.directory / "drops").glob("*.parquet"))
            for r in pq.read_table(p).to_pylist()]  # fmt: skip
    assert Counter(row["reason"] for row in rows) == Counter(
        "too_short" if m.kind in SHORT else m.kind
        for m in made.values() if m.kind in SHORT | BAD
    )  # fmt: skip
    for row in rows:
        assert row["bad_record"] == (made[row["doc_key"]].kind in BAD)
        assert row["line"] == made[row["doc_key"]].line
        assert row["excerpt"].isprintable()


def test_ledger(small_run: Any, documents: dict[bytes, Any], made: dict[bytes, Any]) -> None:
    """Every equation of design section 3, to the document, byte and token, from the raw records."""
    ledger = small_run.json("ledger.json")
    assert ledger["skipped_shards"] == 0
    assert set(ledger["sources"]) == {m.source for m in made.values()}
    for name, account in ledger["sources"].items():
        mine = [(documents[k], m) for k, m in made.items() if m.source == name]
        live = [(row, m, fixed(m)) for row, m in mine if m.kind not in BAD]
        bad = Counter(m.kind for _, m in mine if m.kind in BAD)
        assert account["records"] == {
            "documents": len(mine), "bytes": sum(len(m.raw) for _, m in mine),
        }  # fmt: skip
        assert {k: t["documents"] for k, t in account["bad"].items()} == dict(bad)
        assert account["document_record_bytes"] == sum(len(m.raw) for _, m, _ in live)
        assert account["documents"] == tally(live)
        ends = {s: tally([x for x in live if x[0]["state"] == s]) for s in
                ("kept", "duplicate", "quarantined", "dropped")}  # fmt: skip
        assert account["kept"] == ends["kept"]
        assert account["duplicates"] == ends["duplicate"]
        assert account["quarantined"] == ends["quarantined"]
        assert (
            sum(t["documents"] for t in account["dropped"].values())
            == (ends["dropped"]["documents"])
        )
        assert account["documents"]["documents"] == sum(t["documents"] for t in ends.values())
        assert account["documents"]["bytes"] == sum(t["bytes"] for t in ends.values())
        kept = [tokens_of(text) for row, _, text in live if row["state"] == "kept"]
        assert account["tokens"] == sum(map(len, kept))


def tally(live: list[Any]) -> dict[str, int]:
    return {"documents": len(live), "bytes": sum(len(text.encode()) for _, _, text in live)}


def test_split_equations(small_run: Any, shards: dict[str, list[Shard]]) -> None:
    """rows = ceil((T - S) / MSL), sum(mask) = T - S, one padded row, padding is the rest."""
    ledger = small_run.json("ledger.json")
    for name, split in ledger["splits"].items():
        rows = np.concatenate([shard.rows for shard in shards[name]])
        labels = split["tokens"] - 1
        assert len(rows) == split["rows"] == -(-labels // MSL)
        assert rows[:, 1].sum() == split["mask_sum"] == labels
        assert split["padding"] == len(rows) * MSL - labels
        assert (rows[:, 1, -1] == 0).sum() == (1 if labels % MSL else 0) == 1
        assert (rows[:, 1] == 0).sum() == split["padding"]
        assert (rows[:, 0][rows[:, 1] == 0] == EOS).all()
        assert (rows[:, 2][rows[:, 1] == 0] == EOS).all()


def stream_of(shards: list[Shard]) -> list[int]:
    """The split's token stream, from the rows put back into stream order by their lineage."""
    order = {}
    for shard in shards:
        for row, stream_row in zip(shard.lineage["row"], shard.lineage["stream_row"], strict=True):
            order[int(stream_row)] = shard.rows[int(row)]
    assert sorted(order) == list(range(sum(len(s.rows) for s in shards)))
    stream: list[int] = []
    for number in range(len(order)):
        ids, mask, labels = order[number]
        count = int(mask.sum())
        assert not stream or stream[-1] == ids[0], "windows overlap by one token"
        stream += ids[:count].tolist() if not stream else ids[1:count].tolist()
        stream.append(int(labels[count - 1]))
    return stream


@pytest.mark.parametrize("split", ["train", "validation"])
def test_stream_decodes_to_the_texts(
    split: str, shards: dict[str, list[Shard]], documents: dict[bytes, Any], made: dict[bytes, Any]
) -> None:
    """The rows spell the cleaned texts, EOS after each, ordered by hash(seed, doc_key)."""
    stream = stream_of(shards[split])
    assert stream[-1] == EOS
    keys = [k for k, r in documents.items() if r["state"] == "kept" and r["split"] == split]
    assert stream.count(EOS) == len(keys) > 0
    halves = np.array([np.frombuffer(key, "<u8") for key in keys])
    rank = rng.rank(halves, 7, "shuffle").tolist()
    order = [key for _, key in sorted(zip(rank, keys, strict=True))]
    expected = [token for key in order for token in tokens_of(fixed(made[key]))]
    assert stream == expected
    ends = [i for i, token in enumerate(stream) if token == EOS]
    begins = [0, *(end + 1 for end in ends[:-1])]
    for key, begin, end in zip(order, begins, ends, strict=True):
        text = decode_bytes(GPT2, np.array(stream[begin:end], np.uint16))
        assert text == fixed(made[key]).encode()


def test_separator_in_text_stays_text(documents: dict[bytes, Any], made: dict[bytes, Any]) -> None:
    (key,) = [k for k, m in made.items() if m.kind == "separator"]
    assert documents[key]["tokens"] == len(tokens_of(fixed(made[key])))
    assert tokens_of(fixed(made[key])).count(EOS) == 1


@pytest.mark.parametrize("split", ["train", "validation"])
def test_lineage_is_exact(
    split: str, small_run: Any, shards: dict[str, list[Shard]], made: dict[bytes, Any]
) -> None:
    """Every token that is not padding equals its document's own token at doc_token_start + i."""
    table = small_run.table("documents.parquet")
    keys, states, splits = (table[c].to_pylist() for c in ("doc_key", "state", "split"))
    covered = 0
    for shard in shards[split]:
        own = {d: tokens_of(fixed(made[keys[d]])) for d in set(shard.lineage["doc"].tolist())}
        spans = zip(*(shard.lineage[n].tolist() for n in
                    ("row", "token_start", "token_end", "doc", "doc_token_start")),
                    strict=True)  # fmt: skip
        seen = np.zeros((len(shard.rows), MSL), np.int32)
        for row, start, end, document, begin in spans:
            found = shard.rows[row, 0, start:end].tolist()
            assert found == own[document][begin : begin + end - start]
            assert states[document] == "kept" and splits[document] == split
            seen[row, start:end] += 1
        assert (seen == shard.rows[:, 1]).all(), "every non-pad token once, no pad"
        covered += int(seen.sum())
    assert covered == small_run.json("ledger.json")["splits"][split]["mask_sum"]


def test_validation_split(small_run: Any, documents: dict[bytes, Any]) -> None:
    assert small_run.json("ledger.json")["splits"]["validation"]["rows"] >= 1
    share = [r["split"] for r in documents.values() if r["state"] == "kept"].count("validation")
    assert 1 <= share <= 20, "5 % of 177 documents"


def test_hdf5_contract(small_run: Any, shards: dict[str, list[Shard]]) -> None:
    """facts/data_peers.md section 8, by plain h5py."""
    for split, found in shards.items():
        params = small_run.json(f"hdf5/{split}/data_params.json")
        assert params["features"] == ["input_ids", "attention_mask", "labels"]
        assert params["n_examples"] == sum(s.n_examples for s in found)
        assert (params["max_sequence_length"], params["eos_id"], params["pad_id"]) == (
            MSL,
            EOS,
            EOS,
        )
        assert params["vocab_size"] == 50257 and params["split"] == split
        assert [f["name"] for f in params["files"]] == [s.path.name for s in found]
        assert [f["n_examples"] for f in params["files"]] == [s.n_examples for s in found]
        assert {p.name for p in found[0].path.parent.glob("*.h5")} == {s.path.name for s in found}
        stats = params["h5_dataset_stats"]
        assert stats["loss_valid_tokens"] == sum(int(s.rows[:, 1].sum()) for s in found)
        for shard in found:
            assert shard.rows.dtype == np.int32 and shard.rows.shape[1:] == (3, MSL)
            assert shard.n_examples == len(shard.rows)
            ids, mask, labels = shard.rows[:, 0], shard.rows[:, 1], shard.rows[:, 2]
            assert np.isin(mask, (0, 1)).all()
            assert ((ids[:, 1:] == labels[:, :-1]) | (mask[:, 1:] == 0)).all()
    assert len(shards["train"]) > 3, "the fixture has several shards"


def test_plain_h5py_reads_every_chunk_and_finds_every_flipped_bit(
    shards: dict[str, list[Shard]], tmp_path: Path
) -> None:
    """The checksums are real: h5py itself refuses a chunk with one wrong bit."""
    shard = shards["train"][-1]
    image = shard.path.read_bytes()
    with h5py.File(shard.path, "r") as file:
        data = file["data"]
        assert data.compression == "gzip" and data.fletcher32
        assert data.chunks == (min(len(shard.rows), rows_per_chunk(MSL)), 3, MSL)
        chunks = [data.id.get_chunk_info(i) for i in range(data.id.get_num_chunks())]
    assert all(chunk.filter_mask == 0 for chunk in chunks)
    damaged = tmp_path / "damaged.h5"
    for chunk in chunks:
        for place in np.linspace(0, chunk.size - 1, 23).astype(int).tolist():
            for bit in (0, 7):
                copy = bytearray(image)
                copy[chunk.byte_offset + place] ^= 1 << bit
                damaged.write_bytes(copy)
                with h5py.File(damaged, "r") as file, pytest.raises(OSError, match="filter"):
                    file["data"][:]


def test_manifest_names_every_file(small_run: Any) -> None:
    named = {f["path"]: f["hash"] for f in small_run.json("manifest.json")["files"]}
    present = {
        p.relative_to(small_run.directory).as_posix()
        for p in small_run.directory.rglob("*")
        if p.is_file() and p.name != ".lock"
    }
    present = {p for p in present if not p.startswith("journal/")}
    present -= {"manifest.json", "events.jsonl", "events.head"}
    assert present == set(named)
    for path, digest in named.items():
        data = (small_run.directory / path).read_bytes()
        assert xxhash.xxh3_128_hexdigest(data) == digest


def test_what_knows_all_documents_is_one_task(small_run: Any) -> None:
    def tasks(stage: str) -> int:
        return len(small_run.json(f"manifests/{stage}.json")["tasks"])

    assert [tasks(stage) for stage in ("components", "report", "account")] == [1] * 3
    assert min(tasks(stage) for stage in ("clean", "signatures", "tokenize")) > 1


def test_published_files_hold_nothing_of_this_machine(small_run: Any) -> None:
    """No absolute path, host name or user in anything outside journal/."""
    here = [str(small_run.corpus.root).encode(), str(small_run.directory).encode()]
    for path in small_run.directory.rglob("*"):
        inside = path.relative_to(small_run.directory)
        if path.is_file() and inside.parts[0] != "journal" and path.name != ".lock":
            data = path.read_bytes()
            assert not any(place in data for place in here), inside
