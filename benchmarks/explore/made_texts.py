"""A finished run of any number of short documents with texts, signals and clusters, as far as the
explorer and `prep search` read one.

Tables and lineage are those of `benchmarks.provenance.made_run`. A text has some 60 words that are
drawn from two million by Zipf's law, so a text of ten million documents has some four gigabytes.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.provenance.made_run import make_run
from pipeline.core import rng, storage
from pipeline.core.manifest import Shard, StageManifest, TaskRecord, write_manifest, write_sealed
from pipeline.engine.runner import manifest_path
from pipeline.engine.stage import Output, arrow_output, parquet_output
from pipeline.runs import layout
from pipeline.runs.parts import part
from pipeline.tokenizers.definition import load_definition

SEED, WORDS, PER_TEXT = 7, 2_000_000, 60
PER_SHARD, PER_PART = 1 << 17, 1 << 18
SIGNALS = ("word_count", "mean_word_length", "symbols", "stop_words", "duplicate_lines", "quality")


def make_texts(directory: Path, documents: int) -> None:
    """Write the run."""
    make_run(directory, documents)
    table = pq.read_table(directory / layout.DOCUMENTS, columns=["doc_key", "state", "text_bytes"])
    table = table.combine_chunks()
    draw = rng.generator(SEED, "made-texts")
    lexicon = _make_lexicon(draw)
    clean, signals = [], []
    for first in range(0, documents, PER_SHARD):
        some = table.slice(first, PER_SHARD)
        shards = [_publish(directory, o) for o in _write_shard(draw, lexicon, some, len(clean))]
        counters = {"records": len(some), "bad": 0, "inputs": []}
        clean.append(TaskRecord(str(first), tuple(shards[:2]), counters))
        signals.append(TaskRecord(str(first), tuple(shards[2:])))
    for name, tasks in (("clean", clean), ("signals", signals)):
        fields = {"settings": {"fix_text": False}}
        write_manifest(
            manifest_path(directory, name), StageManifest(name, "0", fields, tuple(tasks))
        )
    _write_about(directory, draw, table)
    (directory / layout.TOKENIZER).write_text(load_definition("gpt2").json)
    write_sealed(directory / layout.MANIFEST, {"config": "made", "story": "prepare"})


def _make_lexicon(draw: np.random.Generator) -> pa.Array:
    """Words of three to ten letters, each once or twice."""
    letters = draw.integers(97, 123, (WORDS, 10), np.uint8).view("S10").ravel()
    lengths = draw.integers(3, 11, WORDS)
    pairs = zip(letters.tolist(), lengths.tolist(), strict=True)
    return pa.array([word[:length].decode() for word, length in pairs])


def _write_shard(
    draw: np.random.Generator, lexicon: pa.Array, about: pa.Table, index: int
) -> list[Output]:
    count = len(about)
    lengths = draw.integers(PER_TEXT // 2, PER_TEXT * 3 // 2, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ranks = np.minimum(WORDS ** draw.random(offsets[-1]), WORDS - 1).astype(np.int32)
    words = lexicon.take(pa.array(ranks))
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), words), " ")
    documents = pa.table({
        "doc_key": about["doc_key"],
        "text": texts.cast(pa.large_string()),
        "text_bytes": about["text_bytes"],
    })  # fmt: skip
    columns = {name: draw.random(count) for name in SIGNALS}
    languages = pa.array(["en", "de", "fr", "es", None]).take(pa.array(draw.integers(0, 5, count)))
    drops = pa.table(
        {"doc_key": about["doc_key"].slice(0, 0), "excerpt": pa.array([], pa.string())}
    )
    return [
        arrow_output(layout.shard("documents", index, "arrow"), documents),
        parquet_output(layout.shard("drops", index, "parquet"), drops),
        parquet_output(
            layout.shard("signals", index, "parquet"),
            pa.table({"doc_key": about["doc_key"], "language": languages, **columns}),
        ),
    ]


def _write_about(directory: Path, draw: np.random.Generator, documents: pa.Table) -> None:
    """A cluster for every duplicate, and evidence on every tenth document."""
    states, keys = documents["state"], documents["doc_key"].combine_chunks()
    members = keys.filter(pc.equal(states, "duplicate").combine_chunks())
    kept = keys.filter(pc.equal(states, "kept").combine_chunks())
    count = len(members)
    clusters = pa.table({
        "kept": kept.take(pa.array(draw.integers(0, max(1, len(kept) // 4), count))),
        "member": members,
        "kind": pa.array(["near"] * count),
        "bands": pa.array([[1, 2]] * count, pa.list_(pa.uint8())),
        "estimate": draw.random(count), "jaccard": draw.random(count),
        "member_state": pa.array(["duplicate"] * count), "index": pa.array([""] * count),
        "source": pa.array(["a"] * count), "kept_source": pa.array(["a"] * count),
    }).sort_by("kept")  # fmt: skip
    some = keys.take(pa.array(np.arange(0, len(keys), 10)))
    none = pa.array([""] * len(some))
    evidence = pa.table({
        "evidence_id": none, "doc_key": some, "detector": pa.array(["notice"] * len(some)),
        "rule": none, "kind": none, "target": none, "work_id": none,
        "seen": pa.array(["copyright somebody"] * len(some)),
        "byte_offset": pa.array(np.zeros(len(some), np.uint64)),
        "byte_length": pa.array(np.full(len(some), 18, np.uint64)),
        "score": draw.random(len(some)), "attributes": none,
    })  # fmt: skip
    for name, table in ((layout.CLUSTERS, clusters), (layout.EVIDENCE, evidence)):
        for number, first in enumerate(range(0, max(1, len(table)), PER_PART)):
            _publish(directory, parquet_output(part(name, number), table.slice(first, PER_PART)))


def _publish(directory: Path, output: Output) -> Shard:
    done = storage.publish(directory / output.path, output.data)
    content = output.content_hash or done.hash
    return Shard(
        path=output.path, size=done.size, hash=done.hash, content_hash=content, end=output.end
    )
