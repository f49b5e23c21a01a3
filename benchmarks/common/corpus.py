"""Texts of the benchmarks: reading and writing JSON lines, samples, edited copies."""

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

LONGEST = 50_000  # characters; one whole novel would be most of a small sample


def read_records(paths: list[str]) -> Iterator[dict[str, Any]]:
    """Every record of JSON-lines files, plain or `.zst`."""
    for path in paths:
        with _opened(path) as lines:
            for line in lines:
                yield json.loads(line)


def read_documents(paths: list[str]) -> Iterator[dict[str, str]]:
    """`id` and `text` of every record; one without an `id` gets its place in the input."""
    for place, record in enumerate(read_records(paths)):
        yield {"id": str(record.get("id", place)), "text": record["text"]}


def read_texts(paths: list[str], megabytes: float) -> list[str]:
    """Texts of JSON-lines files from the beginning, no more than so many MB of UTF-8."""
    texts: list[str] = []
    left = megabytes * 1e6
    for document in read_records(paths):
        left -= text_bytes(document)
        if left < 0:
            break
        texts.append(document["text"])
    return texts


def _opened(path: str):  # type: ignore[no-untyped-def]
    if not path.endswith(".zst"):
        return open(path, encoding="utf-8")
    from backports import zstd

    return zstd.open(path, "rt", encoding="utf-8")


def write_documents(path: Path, documents: Iterable[dict[str, Any]]) -> int:
    """Write JSON lines, by zstd if the name ends in `.zst`; returns the bytes of text (UTF-8)."""
    size = 0
    with _created(path) as file:
        for document in documents:
            file.write(json.dumps(document, ensure_ascii=False) + "\n")
            size += text_bytes(document)
    return size


def _created(path: Path):  # type: ignore[no-untyped-def]
    if path.suffix != ".zst":
        return open(path, "w", encoding="utf-8")
    from backports import zstd

    return zstd.open(path, "wt", encoding="utf-8")


def text_bytes(document: dict[str, Any]) -> int:
    """Bytes of the text in UTF-8."""
    return len(document["text"].encode())


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


def with_copies(
    documents: Iterable[dict[str, Any]], share: float, megabytes: float
) -> list[dict[str, Any]]:
    """Documents until they make so many MB with the edited copies, which stand behind them all.

    The copies are an even choice; they are so large a share of all that is returned.
    """
    base: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    size = 0
    for document in documents:
        base.append(document)
        size += text_bytes(document)
        if len(copies) < share * (len(base) + len(copies)):
            copy = {**document, "text": edited(document["text"])}
            if "id" in copy:
                copy["id"] = f"{copy['id']}-copy"
            copies.append(copy)
            size += text_bytes(copy)
        if size >= megabytes * 1e6:
            break
    return base + copies


def edited(text: str) -> str:
    """The text without every hundredth word (a text of fewer words stays as it is)."""
    words = text.split(" ")
    del words[99::100]
    return " ".join(words)
