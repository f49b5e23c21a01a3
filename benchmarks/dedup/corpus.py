"""Texts of the dedup benchmarks: reading, nested samples, pairs of known Jaccard, replicas."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from peers.shingling import normalize, shingle_set

LONGEST = 50_000  # characters; one whole novel would be most of a small sample
PAIR_CHARACTERS = 1_500
_DIGITS = "0123456789"
_LOWER = "abcdefghijklmnopqrstuvwxyz"


def read_documents(paths: list[str]) -> Iterator[dict[str, str]]:
    """`id` and `text` of every record of JSON-lines files, plain or `.zst`.

    A record without an `id` gets its place in the input.
    """
    place = 0
    for path in paths:
        with _opened(path) as lines:
            for line in lines:
                record = json.loads(line)
                yield {"id": str(record.get("id", place)), "text": record["text"]}
                place += 1


def _opened(path: str):  # type: ignore[no-untyped-def]
    if not path.endswith(".zst"):
        return open(path, encoding="utf-8")
    from backports import zstd

    return zstd.open(path, "rt", encoding="utf-8")


def write_documents(path: Path, documents: list[dict[str, str]]) -> int:
    """Write plain JSON lines; returns the bytes of text (UTF-8)."""
    with open(path, "w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
    return sum(len(document["text"].encode()) for document in documents)


def shuffled_texts(paths: list[str], seed: int = 1) -> list[str]:
    """All texts in a seeded order, cut at `LONGEST` characters, so prefixes are like samples."""
    texts = [document["text"][:LONGEST] for document in read_documents(paths)]
    random.Random(seed).shuffle(texts)
    return texts


def prefix(texts: list[str], megabytes: float) -> list[str]:
    """The shortest prefix with at least so many bytes of UTF-8 (all texts when there are fewer)."""
    size = 0
    for place, text in enumerate(texts, start=1):
        size += len(text.encode())
        if size >= megabytes * 1e6:
            return texts[:place]
    return texts


def similar_pairs(texts: list[str], count: int, unit: str) -> tuple[list[str], list[float]]:
    """Pairs of normalised texts whose Jaccard similarity is spread evenly over [0.5, 1).

    The second text of a pair is the first with its tail replaced by the tail of an unrelated text,
    so long that about the wanted share of shingles is left. Returns 2 * count texts (the two of a
    pair stand side by side) and the exact similarity of each pair over sets of shingles.
    """
    cleaned = (normalize(text)[:PAIR_CHARACTERS] for text in texts)
    long_enough = [text for text in cleaned if len(text) == PAIR_CHARACTERS]
    pairs: list[str] = []
    exact: list[float] = []
    for index in range(count):
        wanted = 0.5 + 0.5 * index / count
        first = long_enough[2 * index % len(long_enough)]
        other = long_enough[(2 * index + 1) % len(long_enough)]
        shared = round(PAIR_CHARACTERS * 2 * wanted / (1 + wanted))
        second = first[:shared] + other[shared:]
        similarity = exact_jaccard(shingle_set(first, unit), shingle_set(second, unit))
        pairs += [first, second]
        exact.append(similarity)
    return pairs, exact


def exact_jaccard(first: set[str], second: set[str]) -> float:
    """|A & B| / |A | B|; 0.0 when both are empty."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0


def edited(text: str) -> str:
    """The text without every hundredth word (a text of fewer words stays as it is)."""
    words = text.split(" ")
    del words[99::100]
    return " ".join(words)


def replicable(documents: Iterator[dict[str, str]]) -> Iterator[dict[str, str]]:
    """The documents that `replica` really changes: at least half ASCII letters and digits."""
    for document in documents:
        text = document["text"]
        if text and 2 * sum(c.isascii() and c.isalnum() for c in text) >= len(text):
            yield document


def replica(documents: list[dict[str, str]], number: int) -> list[dict[str, str]]:
    """The documents with every ASCII letter and digit replaced by another one, the same all over.

    A substitution keeps lengths, words, and each similarity between two documents of one replica;
    two replicas share next to no 13-character shingle. So n replicas hold exactly n times the
    documents, bytes and duplicates of one. Replica 0 is the input itself.
    """
    letters, digits = 3 * number % 26, number % 10
    turned = _LOWER[letters:] + _LOWER[:letters]
    table = str.maketrans(
        _LOWER + _LOWER.upper() + _DIGITS,
        turned + turned.upper() + _DIGITS[digits:] + _DIGITS[:digits],
    )
    return [
        {"id": f"{number}-{document['id']}", "text": document["text"].translate(table)}
        for document in documents
    ]
