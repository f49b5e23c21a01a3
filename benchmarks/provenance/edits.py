"""Edits of an excerpt, as copies in other documents show them; each is a function of its seed.

A share is of words, sentences or characters. Substituted words come from the text's own kind of
language: `Vocabulary` draws them by how often they stand in the reference texts.
"""

import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"[^\W_]+")
_OCR = {
    "e": "c", "c": "e", "l": "1", "1": "l", "o": "0", "0": "o", "i": "l", "n": "ri", "m": "rn",
    "h": "b", "b": "h", "a": "o", "u": "n", "s": "5", "t": "f", "f": "t", "r": "n", "d": "cl",
    "g": "q", "v": "y", "w": "vv", " ": "", ".": ",", ",": ".",
}  # fmt: skip


class Vocabulary:
    """Words of some texts, drawn as often as they stand there."""

    def __init__(self, texts: Iterable[str]) -> None:
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_WORD.findall(text.lower()))
        self._words, self._weights = list(counts), list(counts.values())

    def draw(self, rng: random.Random, count: int) -> list[str]:
        """So many words."""
        return rng.choices(self._words, self._weights, k=count)


def verbatim(text: str, rng: random.Random) -> str:
    return text


def reflow(text: str, rng: random.Random) -> str:
    """Lines of another width, long words cut by hyphens now and then, straight quotes."""
    words = [_cut(word, rng) for word in text.split()]
    lines = textwrap.wrap(" ".join(words), rng.randint(45, 75), break_on_hyphens=False)
    return "\n".join(lines).replace("\0", "-\n").translate(str.maketrans("“”‘’", "\"\"''"))


def _cut(word: str, rng: random.Random) -> str:
    if len(word) < 8 or not word.isalpha() or rng.random() > 0.1:
        return word
    place = rng.randint(3, len(word) - 3)
    return f"{word[:place]}\0{word[place:]}"


def substitute(text: str, rng: random.Random, share: float, vocabulary: Vocabulary) -> str:
    """Words replaced by others."""
    places = list(_WORD.finditer(text))
    chosen = [match for match in places if rng.random() < share]
    others = iter(vocabulary.draw(rng, len(chosen)))
    return _replaced(text, [(m.start(), m.end(), next(others)) for m in chosen])


def delete_words(text: str, rng: random.Random, share: float) -> str:
    chosen = [m for m in _WORD.finditer(text) if rng.random() < share]
    return _replaced(text, [(m.start(), m.end(), "") for m in chosen])


def _replaced(text: str, changes: list[tuple[int, int, str]]) -> str:
    pieces, at = [], 0
    for start, end, other in changes:
        pieces += [text[at:start], other]
        at = end
    return "".join([*pieces, text[at:]])


def ocr(text: str, rng: random.Random, share: float) -> str:
    """Characters misread: one of its look-alikes, or a letter at random, or none."""
    return "".join(_misread(c, rng) if rng.random() < share else c for c in text)


def _misread(character: str, rng: random.Random) -> str:
    if rng.random() < 0.7:
        return _OCR.get(character.lower(), rng.choice("abcdefghijklmnopqrstuvwxyz"))
    return rng.choice(["", rng.choice("abcdefghijklmnopqrstuvwxyz.,'")])


def drop_sentences(text: str, rng: random.Random, share: float) -> str:
    return " ".join(s for s in _SENTENCE.split(text) if rng.random() >= share)


def shuffle_sentences(text: str, rng: random.Random) -> str:
    sentences = _SENTENCE.split(text)
    rng.shuffle(sentences)
    return " ".join(sentences)


Edit = Callable[[str, random.Random], str]


def edits(vocabulary: Vocabulary) -> dict[str, Edit]:
    """The suite, by the name in the tables."""
    suite: dict[str, Edit] = {"verbatim": verbatim, "reflow": reflow}
    for share in (0.1, 0.2, 0.3, 0.4):
        suite[f"words {share:.0%}"] = partial(substitute, share=share, vocabulary=vocabulary)
    suite["delete 10%"] = partial(delete_words, share=0.1)
    suite["OCR 2%"] = partial(ocr, share=0.02)
    suite["OCR 5%"] = partial(ocr, share=0.05)
    suite["drop 30% sentences"] = partial(drop_sentences, share=0.3)
    suite["shuffle sentences"] = shuffle_sentences
    return suite
