"""Larger inputs out of one: replicas that share nothing, with the duplicates of the original.

`LetterReplicas` keeps lengths and all similarities exactly, but makes words that no language has:
a tokenizer needs almost twice the tokens for them. `WordReplicas` keeps words, and so tokens; the
similarities it keeps are exact for shingles of words, near for shingles of characters.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

_DIGITS = "0123456789"
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_WORD = re.compile(r"(&[A-Za-z]+;|[A-Za-z]+)")  # an entity stays: it is work for the cleaning
_RING = 64


def replicable(documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The documents that a replica really changes: at least half ASCII letters and digits."""
    for document in documents:
        text = document["text"]
        if text and 2 * sum(c.isascii() and c.isalnum() for c in text) >= len(text):
            yield document


class LetterReplicas:
    """Every ASCII letter and digit becomes another one, the same all over.

    Lengths, words and each similarity between two documents of one replica stay; two replicas share
    next to no 13-character shingle. So n replicas hold exactly n times the documents, bytes and
    duplicates of one. Replica 0 is the input itself.
    """

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self._documents = documents

    def make(self, number: int) -> Iterator[dict[str, Any]]:
        """The documents of one replica, in order."""
        letters = 3 * number % 26
        turned = _LOWER[letters:] + _LOWER[:letters]
        table = str.maketrans(
            _LOWER + _LOWER.upper() + _DIGITS, turned + turned.upper() + _turned_digits(number)
        )
        for document in self._documents:
            yield _renamed({**document, "text": document["text"].translate(table)}, number)


class WordReplicas:
    """Every word of ASCII letters becomes another of its length that is about as frequent.

    The words of one length are put in rings of `_RING`, or of as many as there shall be `replicas`,
    by falling frequency; replica n turns every ring by n, so no two of them are alike. Capitals and
    digits' places stay, digits turn, HTML entities and all other characters stay. n replicas hold n
    times the documents and bytes, about n times the tokens, and the duplicates of each. Replica 0
    is the input itself.
    """

    def __init__(self, documents: list[dict[str, Any]], replicas: int = 0) -> None:
        self._documents = documents
        self._most = max(_RING, replicas)
        self._rings = _rings(documents, self._most)
        number: defaultdict[str, int] = defaultdict(lambda: len(number))
        self._texts = [
            np.array([number[piece] for piece in _WORD.split(document["text"])], np.int32)
            for document in documents
        ]
        """Numbers of the pieces of each text: what is between words, a word, and so on."""
        self._pieces = list(number)

    def make(self, number: int) -> Iterator[dict[str, Any]]:
        """The documents of one replica, in order."""
        if number >= self._most:
            raise SystemExit(
                f"no more than {self._most} replicas differ: give more text, or ask for less"
            )
        words = _Words(
            {
                word: ring[(place + number) % len(ring)]
                for ring in self._rings
                for place, word in enumerate(ring)
            }
        )
        digits = str.maketrans(_DIGITS, _turned_digits(number))
        pieces = np.array(self._pieces, object)
        if number:
            pieces = np.array(
                [words[p] if _WORD.match(p) else p.translate(digits) for p in self._pieces], object
            )
        for document, text in zip(self._documents, self._texts, strict=True):
            yield _renamed({**document, "text": "".join(pieces[text].tolist())}, number)


class _Words(dict[str, str]):
    """Lower-case words to others; other forms are added as they come."""

    def __missing__(self, word: str) -> str:
        found = word
        if word[0] != "&":
            found = self[word.lower()]
            if word.istitle():
                found = found.title()
            elif word.isupper():
                found = found.upper()
        self[word] = found
        return found


def _rings(documents: list[dict[str, Any]], size: int) -> list[list[str]]:
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(word.lower() for word in _WORD.findall(document["text"]) if word[0] != "&")
    by_length: defaultdict[int, list[str]] = defaultdict(list)
    for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        by_length[len(word)].append(word)
    return [
        words[start : start + size]
        for words in by_length.values()
        for start in range(0, len(words), size)
    ]


def _turned_digits(number: int) -> str:
    turn = number % 10
    return _DIGITS[turn:] + _DIGITS[:turn]


def _renamed(document: dict[str, Any], number: int) -> dict[str, Any]:
    if "id" in document:
        document["id"] = f"{number}-{document['id']}"
    return document
