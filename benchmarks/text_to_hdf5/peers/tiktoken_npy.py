"""Text to tokens by a short script around tiktoken: read, encode, one `.npy` a file.

    PYTHON peers/tiktoken_npy.py --out DIR --vocabulary DIR FILES...

What nanoGPT's prepare.py does, on its fastest calls: zstandard and orjson read the lines,
`encode_to_numpy` makes the ids, an EOS follows every document, uint16.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import tiktoken
import zstandard
from common import options_of, print_summary
from tiktoken.load import data_gym_to_mergeable_bpe_ranks

EOS = 50256
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def main() -> None:
    options = options_of(__doc__)
    options.out.mkdir(parents=True)
    encoding = gpt2(options.vocabulary)
    documents = tokens = 0
    for file in options.files:
        parts = []
        for text in texts(file):
            parts += [encoding.encode_to_numpy(text, disallowed_special=()), [EOS]]
            documents += 1
        ids = np.concatenate(parts, dtype=np.uint16, casting="unsafe")
        np.save(options.out / f"{file.name}.npy", ids)
        tokens += len(ids)
    print_summary(documents, tokens, "tiktoken", "orjson", "zstandard", "numpy")


def gpt2(vocabulary: Path) -> tiktoken.Encoding:
    """What `get_encoding("gpt2")` builds, from files that are here."""
    names = (str(vocabulary / name) for name in ("vocab.bpe", "encoder.json"))
    ranks = data_gym_to_mergeable_bpe_ranks(*names)
    special = {"<|endoftext|>": EOS}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


def texts(file: Path) -> Iterator[str]:
    """The text of every line of a zstd file."""
    with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
        for line in io.BufferedReader(plain, 1 << 20):
            yield orjson.loads(line)["text"]


if __name__ == "__main__":
    main()
