"""What the rules of recipes keep, beside datatrove's own filters on the same cleaned texts.

    python -m benchmarks.recipes SHARD... --peer-python PYTHON

PYTHON has datatrove (benchmarks/text_to_hdf5/requirements.txt). Printed for each group of rules:
documents that ours keeps, that datatrove keeps, and on how many both say the same. Differences come
from words (ours end at white space, datatrove's are those of a tokenizer or, with --words split, of
`str.split`), from the characters that end a sentence, and from C4's cutting of lines.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.cleaning import clean_array
from pipeline.config.filters import C4Config, FiltersConfig, GopherConfig, GopherRepetitionConfig
from pipeline.core import zstd
from pipeline.filters import fineweb
from pipeline.filters.rules import Filters, find_failures

PEER = """
import json, sys
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter,
)
if sys.argv[1] == "split":
    for module in ("gopher_quality_filter", "gopher_repetition_filter", "fineweb_quality_filter"):
        m = __import__(f"datatrove.pipeline.filters.{module}", fromlist=["x"])
        m.split_into_words = lambda text, language: text.split()
groups = {
    "gopher": GopherQualityFilter(),
    "gopher_repetition": GopherRepetitionFilter(),
    "c4": C4QualityFilter(filter_no_terminal_punct=False),
    "fineweb": FineWebQualityFilter(),
}
for line in sys.stdin:
    text = json.loads(line)
    said = {}
    for name, rules in groups.items():
        answer = rules.filter(Document(text=text, id="x")) if text.strip() else False
        said[name] = (answer if isinstance(answer, bool) else answer[0])
    print(json.dumps(said))
"""
CONFIGS = {
    "gopher": FiltersConfig(gopher=GopherConfig()),
    "gopher_repetition": FiltersConfig(gopher_repetition=GopherRepetitionConfig()),
    "c4": FiltersConfig(c4=C4Config(min_terminal_lines=0)),
}


def read_texts(shards: list[Path], most: int) -> pa.LargeStringArray:
    """The cleaned texts of jsonl.zst shards, `most` of them, evenly spread."""
    lines = [line for s in shards for line in zstd.decompress(s.read_bytes()).splitlines()]
    chosen = np.linspace(0, len(lines) - 1, min(most, len(lines))).astype(int)
    return clean_array([json.loads(lines[place])["text"] for place in chosen])


def kept_by_rules(config: FiltersConfig) -> Callable[[pa.LargeStringArray], np.ndarray]:
    """Which texts pass the rules of a config."""

    def kept(texts: pa.LargeStringArray) -> np.ndarray:
        stays = np.ones(len(texts), np.bool_)
        stays[find_failures(texts, Filters(config)).row] = False
        return stays

    return kept


def kept_by_fineweb(texts: pa.LargeStringArray) -> np.ndarray:
    """Which texts pass the expression of configs/prep/fineweb.yaml."""
    punctuated, short, repeated, newlines = fineweb.measure(texts).T
    return (punctuated >= 0.12) & (repeated <= 0.01) & (short <= 0.67) & (newlines <= 0.3)


def ask_peer(python: str, words: str, texts: pa.LargeStringArray) -> dict[str, np.ndarray]:
    """What datatrove keeps, by group of rules."""
    with tempfile.TemporaryFile("w+") as file:
        file.writelines(json.dumps(text) + "\n" for text in texts.to_pylist())
        file.seek(0)
        done = subprocess.run(
            [python, "-c", PEER, words], stdin=file, capture_output=True, text=True, check=True
        )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: np.array([answer[name] for answer in said]) for name in said[0]}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", nargs="+", type=Path)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--documents", type=int, default=3000)
    parser.add_argument("--words", choices=("own", "split"), default="own")
    arguments = parser.parse_args()
    texts = read_texts(arguments.shards, arguments.documents)
    theirs = ask_peer(arguments.peer_python, arguments.words, texts)
    ours = {name: kept_by_rules(config)(texts) for name, config in CONFIGS.items()}
    ours["fineweb"] = kept_by_fineweb(texts)
    print(f"{len(texts):,} documents; words of datatrove: {arguments.words}")
    print("| rules | kept by ours | by datatrove | the same answer |\n|---|--:|--:|--:|")
    for name, kept in ours.items():
        same = (kept == theirs[name]).mean()
        print(f"| {name} | {kept.sum():,} | {theirs[name].sum():,} | {same:.1%} |")


if __name__ == "__main__":
    main()
