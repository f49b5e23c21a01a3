"""One tokenizer over texts; started by `tokenizing.py` in the folder above.

    PYTHON peers/encoding.py WAY --megabytes N --tokenizer NAME --vocabulary DIR FILES...

Prints one JSON line: MB per second of process time and of the clock, cold and for ours warm, the
growth of the peak memory, the number of ids and their hash (EOS left out). Texts are made before
the clock starts: an Arrow array for ours, `str` for the others.
"""

import argparse
import hashlib
import io
import json
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 256
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

Encode = Callable[[], Iterable[np.ndarray[Any, Any]]]


def ours(texts: list[str], options: argparse.Namespace) -> tuple[str, Encode]:
    """The pipeline's tokenizing: Arrow strings to an Arrow list array with EOS."""
    import pyarrow as pa

    from pipeline.tokenizers.engine import open_tokenizer, tokenize_documents

    tokenizer = open_tokenizer(options.tokenizer)
    eos = tokenizer.definition.eos_id
    array = pa.array(texts, pa.large_string())
    texts.clear()

    def encode() -> Iterable[np.ndarray[Any, Any]]:
        ids = tokenize_documents(array, tokenizer).values.to_numpy()
        yield ids[ids != eos]

    return f"ours ({tokenizer.engine_name})", encode


def tokenizers(texts: list[str], options: argparse.Namespace) -> tuple[str, Encode]:
    """`encode_batch_fast` (no offsets), special tokens read as text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.vocabulary / "tokenizer.json"))
    tokenizer.encode_special_tokens = True

    def encode() -> Iterable[np.ndarray[Any, Any]]:
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            for found in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(found.ids, np.uint32)

    return "tokenizers encode_batch_fast", encode


def tiktoken(texts: list[str], options: argparse.Namespace) -> tuple[str, Encode]:
    """`encode_to_numpy`, its fastest call; GPT-2 only."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    names = (str(options.vocabulary / name) for name in ("vocab.bpe", "encoder.json"))
    encoding = tiktoken.Encoding(
        "gpt2",
        pat_str=GPT2_PATTERN,
        mergeable_ranks=data_gym_to_mergeable_bpe_ranks(*names),
        special_tokens={"<|endoftext|>": 50256},
    )

    def encode() -> Iterable[np.ndarray[Any, Any]]:
        for text in texts:
            yield encoding.encode_to_numpy(text, disallowed_special=())

    return "tiktoken encode_to_numpy", encode


WAYS = {"ours": ours, "tokenizers": tokenizers, "tiktoken": tiktoken}


def read_texts(paths: list[Path], megabytes: float) -> list[str]:
    """The `text` fields of JSON-lines files, plain or zstd, up to so many MB."""
    texts: list[str] = []
    left = megabytes * 1e6
    for path in paths:
        for line in _lines(path):
            text = json.loads(line)["text"]
            left -= len(text.encode())
            if left < 0:
                return texts
            texts.append(text)
    return texts


def _lines(path: Path) -> Iterable[bytes]:
    if path.suffix != ".zst":
        return path.open("rb")
    import zstandard

    return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(path.open("rb")), 1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    options = parser.parse_args()
    texts = read_texts(options.files, options.megabytes)
    size = sum(len(text.encode()) for text in texts) / 1e6
    label, encode = WAYS[options.way](texts, options)
    result: dict[str, Any] = {"label": label, "megabytes": size}
    for name in ("cold", "warm") if options.way == "ours" else ("cold",):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu, wall = time.process_time(), time.perf_counter()
        ids = list(encode())
        result[name] = size / (time.process_time() - cpu)
        result[f"{name}_wall"] = size / (time.perf_counter() - wall)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result.setdefault("rss_mib", (after - before) / 1024)
        flat = np.concatenate([np.zeros(0, np.uint32), *ids]).astype(np.uint32)
        result["tokens"], result["ids"] = len(flat), hashlib.sha256(flat.tobytes()).hexdigest()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
