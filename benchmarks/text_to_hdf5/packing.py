"""How much of a row is padding, and how fast tokens become HDF5: packers and stages on real text.

    python benchmarks/text_to_hdf5/packing.py pile_sample/*.jsonl.zst [--msl 256 2048 8192]
        [--stages] [--stage-msl 2048] [--work DIR] [--seed 1]

*Padding.* The documents are tokenized with GPT-2, one EOS each, and packed by

- `first_fit`, `greedy`: the packers of `pack.packer`, on the documents in shuffled order, bucket by
  bucket of `pack.bucket_tokens`;
- `Model Zoo 2.3+`: next fit over the documents of each 1 MB of input, sorted by falling length
  (`append_within_max_length` of its vsl_pretraining_token_generator.py, `read_chunk_size` 1024 kB);
  pieces of a long document hold MSL + 1 tokens and do not overlap, a bin holds MSL tokens and its
  row one label less;
- `Model Zoo 2.2`: first fit over all bins of a process, none of which is written before the end
  (its VSLLMDataPreprocessor), here with one process.

`padding` is the share of columns without a label; `fewest` the rows that so many labels need.

*Stages* (`--stages`). The same tokens, as a run holds them, go through scatter, gather, rows and
pack in this process: tokens and MB of text per CPU second of the tasks, the least of three rounds,
without publishing. The text is what the tokens stand for.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.arrays import I64
from pipeline.config.prep import Config, PackConfig
from pipeline.core import ids, rng, storage, zstd
from pipeline.core.manifest import Shard, StageManifest, TaskRecord
from pipeline.engine.stage import Inputs, Stage, arrow_output
from pipeline.hdf5.packing import PACKERS, fold
from pipeline.runs.views.data_set import TokensOutput
from pipeline.runs.views.documents import CleanOutput
from pipeline.stages.shards import pack_streams
from pipeline.stages.shuffle.gather import gather_streams
from pipeline.stages.shuffle.places import in_order, places
from pipeline.stages.shuffle.scatter import scatter_tokens
from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents

CHUNK_BYTES = 1024 * 1000
SHARD_TEXT_BYTES = 64 << 20


def read_texts(paths: Iterable[str]) -> list[str]:
    texts = []
    for path in paths:
        data = Path(path).read_bytes()
        data = zstd.decompress(data) if path.endswith(".zst") else data
        texts += [json.loads(line)["text"] for line in data.splitlines()]
    return texts


def shuffled_buckets(tokens_D: I64, seed: int) -> list[I64]:
    """Indices of the documents of every bucket, in stream order."""
    keys = np.stack([np.arange(len(tokens_D), dtype=np.uint64)] * 2, axis=1)
    rank = rng.rank(keys, seed, "shuffle")
    order = np.argsort(rank, kind="stable")
    buckets = -(-int(tokens_D.sum()) // PackConfig().bucket_tokens)
    bounds = [(1 << 64) * b // buckets for b in range(1, buckets)]
    cuts = np.searchsorted(rank[order], np.array(bounds, np.uint64))
    return np.split(order, cuts)


def ours(packer: str, tokens_D: I64, msl: int, seed: int) -> tuple[int, int]:
    """Rows and labels."""
    rows = labels = 0
    for bucket in shuffled_buckets(tokens_D, seed):
        segments = fold(tokens_D[bucket], msl)
        rows += int(PACKERS[packer](segments.labels, msl).max(initial=-1)) + 1
        labels += int(segments.labels.sum())
    return rows, labels


def modelzoo_new(tokens_D: I64, bytes_D: I64, msl: int) -> tuple[int, int]:
    rows = labels = 0
    chunk = np.cumsum(bytes_D) // CHUNK_BYTES
    for start, end in zip(*_runs(chunk), strict=True):
        pieces = [
            min(msl + 1, n - at)
            for n in tokens_D[start:end].tolist()
            for at in range(0, n, msl + 1)
        ]
        used = 0
        for length in sorted(pieces, reverse=True):
            if used + length > msl and used:
                rows, labels, used = rows + 1, labels + used - 1, 0
            used += length
        rows, labels = rows + 1, labels + used - 1
    return rows, labels


def _runs(values: I64) -> tuple[list[int], list[int]]:
    cuts = np.flatnonzero(np.diff(values)) + 1
    return [0, *cuts.tolist()], [*cuts.tolist(), len(values)]


def modelzoo_old(tokens_D: I64, msl: int) -> tuple[int, int]:
    """First fit in input order: a tree of the most room among bins."""
    labels = fold(tokens_D, msl).labels
    partial = labels[labels < msl].tolist()
    leaves = 1 << max(1, len(partial)).bit_length()
    room = [msl] * (2 * leaves)
    last = -1
    for length in partial:
        node = 1
        while node < leaves:
            node *= 2
            node += room[node] < length
        last = max(last, node - leaves)
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return int((labels == msl).sum()) + last + 1, int(labels.sum())


def padding_table(tokens_D: I64, bytes_D: I64, lengths: list[int], seed: int) -> None:
    print(f"{'MSL':>6}  {'packer':<16}{'rows':>9}{'fewest':>9}{'padding':>10}{'CPU ms':>9}")
    for msl in lengths:
        contestants: dict[str, Callable[[], tuple[int, int]]] = {
            "first_fit": lambda msl=msl: ours("first_fit", tokens_D, msl, seed),
            "greedy": lambda msl=msl: ours("greedy", tokens_D, msl, seed),
            "Model Zoo 2.3+": lambda msl=msl: modelzoo_new(tokens_D, bytes_D, msl),
            "Model Zoo 2.2": lambda msl=msl: modelzoo_old(tokens_D, msl),
        }
        for name, pack in contestants.items():
            pack()
            begin = time.process_time()
            rows, labels = pack()
            spent = 1000 * (time.process_time() - begin)
            share = 100 * (1 - labels / (rows * msl))
            fewest = -(-labels // msl)
            print(f"{msl:>6}  {name:<16}{rows:>9,}{fewest:>9,}{share:>9.3f}%{spent:>9.1f}")


def write_tokens(
    texts: list[str], tokens: pa.LargeListArray, seed: int, root: Path
) -> tuple[Any, Any]:
    """The tokens as a run holds them, in shards of about a task's text."""
    sizes = np.array([len(text.encode()) for text in texts])
    task = np.cumsum(sizes) // SHARD_TEXT_BYTES
    clean, done = [], []
    for number, (start, end) in enumerate(zip(*_runs(task), strict=True)):
        count = end - start
        doc_id = pa.array((np.uint64(number) << np.uint64(32)) + np.arange(count, dtype=np.uint64))
        keys = [ids.doc_key("bench", "x", start + i) for i in range(count)]
        part = tokens.slice(start, count)
        table = pa.table({"doc_id": doc_id, "doc_key": pa.array(keys, pa.binary(16)),
                          "tokens": part})  # fmt: skip
        once = np.ones(count, np.uint8)
        placed = places(ids.keys_as_u64(table["doc_key"]), 0 * once, once, seed)
        shard = publish(arrow_output(f"tokens/{number:06d}.arrow", in_order(table, placed)), root)
        of_splits = {"train": len(part.flatten()), "validation": 0}
        done.append(TaskRecord("", (shard,), {"documents": count, "splits": of_splits}))
        clean.append(TaskRecord("", (), {"records": count}))
    return (
        CleanOutput(StageManifest("clean", "", {}, tuple(clean))),
        TokensOutput(StageManifest("tokenize", "", {"settings": {"seed": seed}}, tuple(done))),
    )


def publish(output: Any, root: Path) -> Shard:
    made = storage.publish(root / output.path, output.data)
    return Shard(path=output.path, size=made.size, hash=made.hash, content_hash=output.content_hash)


CONTAINERS = (("sample", "gzip"), ("sample", "gzip-shuffle"), ("sample", "none"), ("vsl", "gzip"),
              ("vsl", "gzip-shuffle"), ("corpus", "gzip"))  # fmt: skip
ROUNDS = 3


def stage_table(texts: list[str], tokens: pa.LargeListArray, arguments: argparse.Namespace) -> None:
    text_mb, count = sum(len(t.encode()) for t in texts) / 1e6, len(tokens.values)
    vocabulary = open_tokenizer("gpt2").definition
    print(f"\n{'format':<22}{'stage':<9}{'CPU s':>8}{'Mtok/s':>9}{'text MB/s':>11}{'bytes':>14}")
    for layout, compression in CONTAINERS:
        best: dict[str, tuple[float, int]] = {}
        with tempfile.TemporaryDirectory(dir=arguments.work) as directory:
            root = Path(directory)
            manifests = write_tokens(texts, tokens, arguments.seed, root)
            config = Config.model_validate({
                "name": "bench", "inputs": ({"name": "x", "path": "x"},), "seed": arguments.seed,
                "pack": {"format": layout, "max_sequence_length": arguments.stage_msl},
                "hdf5": {"compression": compression},
            })  # fmt: skip
            for _ in range(ROUNDS):
                spent = stages(config, vocabulary, manifests, root)
                best = {name: min(spent[name], best.get(name, spent[name])) for name in spent}
        for name, (seconds, size) in best.items():
            if name != "params":
                print(
                    f"{layout + ' ' + compression:<22}{name:<9}{seconds:>8.2f}"
                    f"{count / 1e6 / seconds:>9.1f}{text_mb / seconds:>11.0f}{size:>14,}"
                )


def stages(
    config: Config, vocabulary: Any, manifests: tuple[Any, Any], root: Path
) -> dict[str, tuple[float, int]]:
    """CPU seconds of every stage's tasks, and the bytes they made."""
    clean, tokens = manifests
    spent: dict[str, tuple[float, int]] = {}

    def run(stage: Stage) -> StageManifest:
        records, seconds, size = [], 0.0, 0
        for task in stage.tasks:
            begin = time.process_time()
            result = stage.function(task.job, Inputs(root))
            outputs = list(result.outputs)
            seconds += time.process_time() - begin
            shards = tuple(publish(output, root) for output in outputs)
            size += sum(shard.size for shard in shards)
            records.append(TaskRecord("", shards, dict(result.counters)))
        spent[stage.name] = (seconds, size)
        return StageManifest(stage.name, "", {}, tuple(records))

    streams = gather_streams(config, scatter_tokens(config, tokens, None, run), run)
    pack_streams(config, vocabulary, clean, streams, run)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="+", metavar="FILE", help="jsonl, plain or zstd")
    parser.add_argument("--msl", nargs="+", type=int, default=[256, 2048, 8192])
    parser.add_argument("--stages", action="store_true", help="also the speed of the stages")
    parser.add_argument("--stage-msl", type=int, default=2048)
    parser.add_argument("--work", type=Path, default=None, help="directory for what they write")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    texts = read_texts(arguments.paths)
    tokens = tokenize_documents(pa.array(texts, pa.large_string()), open_tokenizer("gpt2"))
    tokens_D = np.diff(tokens.offsets.to_numpy()).astype(np.int64)
    bytes_D = np.array([len(text.encode()) for text in texts])
    print(f"{len(texts):,} documents, {bytes_D.sum() / 1e6:.1f} MB, {tokens_D.sum():,} tokens")
    padding_table(tokens_D, bytes_D, arguments.msl, arguments.seed)
    if arguments.stages:
        stage_table(texts, tokens, arguments)


if __name__ == "__main__":
    main()
