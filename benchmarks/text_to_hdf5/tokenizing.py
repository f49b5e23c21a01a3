"""How fast one core turns text into token ids: ours against `tokenizers` and tiktoken.

    python benchmarks/text_to_hdf5/tokenizing.py pile_sample/*.jsonl.zst [--megabytes 130]
        [--tokenizer gpt2] [--cpu 0] [--repeat 3]

Every contestant runs in processes of its own, pinned to one CPU and held to one thread, over the
same documents. The *cold* pass is the first over the text, right after loading: caches of words
start empty, as in a worker. The rate is MB (10^6 bytes of UTF-8) per CPU second, the median of the
rounds, because a busy neighbour slows the clock on the wall; that rate is printed too. A round runs
all contestants one after another, and the ratio is the median of the rounds' ratios. RSS is
the growth of the peak during the cold pass. *Ours* starts from an Arrow array of strings and ends
with an Arrow array of lists, an EOS after every document; the others start from Python strings that
were made before the clock started, and end with what their fastest interface gives. The ids of all
must be equal, or the script fails. tiktoken takes part with GPT-2 only, where it is installed.
"""

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.shipped import gpt2_vocabulary
from pipeline.sources.streams import zstd
from pipeline.tokenizers.definition import load_definition, reference_tokenizer
from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents

BATCH = 256
TARGETS = {"tokenizers encode_batch_fast": 40.0, "tiktoken": 6.0}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "FASTOKENS_BPE_THREADS")
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

Encode = Callable[[], Iterable[np.ndarray[Any, Any]]]


def read_texts(paths: list[str], megabytes: float) -> list[str]:
    """The `text` fields of JSON-lines files, plain or zstd, up to so many MB."""
    texts: list[str] = []
    left = megabytes * 1e6
    for path in paths:
        data = Path(path).read_bytes()
        data = zstd.decompress(data) if path.endswith(".zst") else data
        for line in data.splitlines():
            text = json.loads(line)["text"]
            left -= len(text.encode())
            if left < 0:
                return texts
            texts.append(text)
    return texts


def prepare_ours(texts: list[str], name: str) -> tuple[str, Encode]:
    tokenizer = open_tokenizer(name)
    eos = tokenizer.definition.eos_id
    array = pa.array(texts, pa.large_string())
    texts.clear()

    def encode() -> Iterable[np.ndarray[Any, Any]]:
        ids = tokenize_documents(array, tokenizer).values.to_numpy()
        yield ids[ids != eos]

    return f"ours ({tokenizer.engine_name})", encode


def prepare_tokenizers(texts: list[str], name: str) -> tuple[str, Encode]:
    tokenizer = reference_tokenizer(load_definition(name))

    def encode() -> Iterable[np.ndarray[Any, Any]]:
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            for found in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(found.ids, np.uint32)

    return "tokenizers encode_batch_fast", encode


def prepare_tiktoken(texts: list[str], name: str) -> tuple[str, Encode]:
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    folder = gpt2_vocabulary()
    ranks = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    encoding = tiktoken.Encoding(
        name, pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )

    def encode() -> Iterable[np.ndarray[Any, Any]]:
        for text in texts:
            yield encoding.encode_to_numpy(text, disallowed_special=())

    return "tiktoken encode_to_numpy", encode


CONTESTANTS = {
    "ours": prepare_ours,
    "tokenizers": prepare_tokenizers,
    "tiktoken": prepare_tiktoken,
}


def measure(contestant: str, options: argparse.Namespace) -> dict[str, Any]:
    """One cold pass in this process, and for ours a warm one."""
    os.sched_setaffinity(0, {options.cpu})
    texts = read_texts(options.inputs, options.megabytes)
    size = sum(len(text.encode()) for text in texts) / 1e6
    label, encode = CONTESTANTS[contestant](texts, options.tokenizer)
    result: dict[str, Any] = {"label": label, "megabytes": size}
    for name in ("cold", "warm") if contestant == "ours" else ("cold",):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu, wall = time.process_time(), time.perf_counter()
        ids = list(encode())
        result[name] = size / (time.process_time() - cpu)
        result[f"{name}_wall"] = size / (time.perf_counter() - wall)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result.setdefault("rss", (after - before) / 1024)
        flat = np.concatenate([np.zeros(0, np.uint32), *ids]).astype(np.uint32)
        result["tokens"], result["ids"] = len(flat), hashlib.sha256(flat.tobytes()).hexdigest()
    return result


def child(contestant: str, options: argparse.Namespace) -> dict[str, Any]:
    """`measure` in a process of its own."""
    single = {**os.environ, **dict.fromkeys(THREADS, "1"), "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--only", contestant],
        env=single,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report(results: dict[str, list[dict[str, Any]]]) -> None:
    """A table, the ratios against their targets; exits 1 where ids differ."""
    print("contestant | MB | cold MB/CPU s | cold MB/s wall | RSS MiB | ours / it, per round")
    print("---|---|---|---|---|---")
    for runs in results.values():
        middle = {
            key: statistics.median(run[key] for run in runs)
            for key in ("megabytes", "cold", "cold_wall", "rss")
        }
        label = runs[0]["label"]
        pairs = zip(results["ours"], runs, strict=True)
        ratio = statistics.median(ours["cold"] / it["cold"] for ours, it in pairs)
        target = next((t for name, t in TARGETS.items() if label.startswith(name)), None)
        goal = f" (target {target:g})" if target else ""
        print(
            f"{label} | {middle['megabytes']:.1f} | {middle['cold']:.1f} | "
            f"{middle['cold_wall']:.1f} | {middle['rss']:.0f} | {ratio:.1f}{goal}"
        )
    warm = statistics.median(run["warm"] for run in results["ours"])
    print(f"ours, warm: {warm:.1f} MB/CPU s")
    if len({run["ids"] for runs in results.values() for run in runs}) > 1:
        sys.exit("the ids differ")
    print(f"ids of all equal: {results['ours'][0]['tokens']} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("inputs", nargs="+", help="JSON-lines files with a text field")
    parser.add_argument("--megabytes", type=float, default=1e9, help="text to take, MB")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2 or a tokenizer.json")
    parser.add_argument("--cpu", type=int, default=0, help="the CPU to run on")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=sorted(CONTESTANTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options)))
        return
    names = ["ours", "tokenizers"]
    if options.tokenizer == "gpt2" and find_spec("tiktoken"):
        names.append("tiktoken")
    print(open_tokenizer(options.tokenizer).reason)
    rounds = [{name: child(name, options) for name in names} for _ in range(options.repeat)]
    report({name: [found[name] for found in rounds] for name in names})


if __name__ == "__main__":
    main()
