"""The strings that an engine must encode as `tokenizers` does before it may be used.

Everything here is a function of the tokenizer and of `VERSION`: the same strings on every machine.
They aim at where byte-level BPE implementations are known to differ: white space of all kinds and
lengths, contractions, marks and joiners, digits of other scripts, borders of Unicode classes (the
tables of two regex engines may be of different Unicode versions), special-token strings, words
longer than any cache entry, blocks of 16, 32 and 64 bytes, and every token of the vocabulary.
"""

import random
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TypeVar

from tokenizers import Tokenizer

_T = TypeVar("_T")

VERSION = 1
"""Raised whenever a string is added or changed: earlier verdicts are then void."""

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    " \t\n\r\v\f\u0085\u00a0\u1680\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
    "\u180e\u200b\ufeff",
    "0123456789٣٤٥۷०१೬๕１２½²₃ⅣⅫ㊿𝟘𝟙",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~’‘“”—…¡¿§©®°±×÷€£¥",
    "éèêëüößñçåæøłžšđğışőțÀÉÑǅǈſKΩÅ",
    "\u0300\u0301\u0308\u030a\u0323\u0327\u034f\u064b\u0651\u093c\u0e31\u20e3\ufe0f\ufe0e",
    "абвгдежзийклмнопрстуфхцчшщъыьэюяЁЇαβγδεζηθικλμνξοπρστυφχψως",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهويةىئءآأإؤﷺﷲ\u0640\u064e\u064f\u0650\u0652\u200c\u200d",
    "אבגדהוזחטיכלמנסעפצקרשתְֱֲ",
    "कखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहिीुूेैोौं्কখগতবাংলাதமிழ்తెలుగుไทยภาษา",
    "中文字符的一是不了人我在有他这为之大来以个上漢字仮名あいうえおアイウエオ한국어조선말。、「」",
    "😀😂🤣👍🏽👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈🇩🇪🇫🇷❤️☺️🧑🏿\u200d🚀#️⃣🀄🃏",
    "\x00\x01\x02\x07\x08\x0e\x1b\x1f\x7f\x80\x9f\xad\u200e\u200f\u202a\u202e\u2066\u2069\ufff9\ufffd\uffff",
    "𐍈𐎀𒀀𓀀𝒜𝓑𠀀𪚥🜁\U000e0041\U000e007f\U0010ffff\ue000\U000f0000",
)
_PIECES = (
    "'s", "'S", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'D", "’s", "'ſ", "''", "'lll",
    "don't", "I'LL", "they've", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ",
    "\u00a0", "the", " the", "Hello", " world", "naïve", "café", "cafe\u0301", "Straße", "ﬁ", "Ⅷ",
    "x²", "10,000.50", "2024-01-31", "0x1F", "https://example.org/a?b=c&d=%20#e",
    "user@example.org", "C:\\path\\file",
    "def f(x):\n    return x  # ok", "<|", "|>", "endoftext", "<s>", "</s>", "[CLS]", "<unk>",
    "▁", "Ġ", "Ċ", "==", "!!!", "...", "---", "____", "\\n", "&amp;", "مرحبا", "العَرَبِيَّة", "日本語",
    "привет", "नमस्ते", "👩\u200d🚀",
)  # fmt: skip
_RUN_CHARACTERS = " \n\ta=-.0é中😀ا\u0301\u200d\u00a0_"
_RUN_LENGTHS = (2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 255,
                256, 257, 1023, 1024, 1025)  # fmt: skip
_RANDOM_STRINGS = 1600
_ID_STRINGS = 300
_MOST_TOKENS = 1 << 16
_JOINED_TOKENS = 64
_LONG_TEXTS = (40_000, 33_000, 17_000, 9_000)
_MOST_SPECIAL = 64
_NEIGHBOURS = 12
_VOCABULARY_PIECES = 3000
_WORDS = ("I", "he", "IT", "don", "Xa", "é", "中", "1", "a1", "ء", "x\u0301", "!", "", "ſ", "they")
_ENDINGS = ("s", "S", "ſ", "t", "T", "re", "RE", "Re", "rE", "ve", "VE", "m", "M", "ll", "LL", "lL",
            "d", "D", "x", "'s")  # fmt: skip


class _Draw:
    """Reproducible choices: `random.Random.random` gives the same sequence in every Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        """An integer in [0, limit)."""
        return int(self._random.random() * limit)

    def one(self, choices: Sequence[str]) -> str:
        """One of `choices`."""
        return choices[self.below(len(choices))]


def battery(tokenizer: Tokenizer, added_tokens: Sequence[str]) -> list[str]:
    """All strings, a few thousand, about 1 MB."""
    vocabulary = token_texts(tokenizer)
    return [
        *_fixed(),
        *_special(added_tokens),
        *_contractions(vocabulary),
        *random_strings(_RANDOM_STRINGS, seed=1, extra=take_evenly(vocabulary, _VOCABULARY_PIECES)),
        *random_strings(_RANDOM_STRINGS // 4, seed=2, extra=added_tokens),
        *_runs(),
        *_words(),
        *_code_points(),
        *_class_borders(),
        *_join_tokens(vocabulary),
        *_random_ids(tokenizer),
        *_long_texts(),
    ]


def random_strings(count: int, seed: int, extra: Sequence[str] = ()) -> Iterator[str]:
    """`count` strings of up to 40 parts: characters of one or two scripts, pieces of text, and
    pieces of `extra` as often as those.
    """
    draw = _Draw(seed)
    for _ in range(count):
        scripts = (draw.one(_ALPHABETS), draw.one(_ALPHABETS))
        share = draw.below(4)
        parts = []
        for _ in range(draw.below(41)):
            kind = draw.below(8)
            if kind < share:
                parts.append(draw.one(extra if extra and draw.below(2) else _PIECES))
            elif kind == 7:
                parts.append(" " * (1 + draw.below(3)))
            else:
                parts.append(draw.one(scripts[draw.below(2)]))
        yield "".join(parts)


def any_code_points(count: int, seed: int) -> Iterator[str]:
    """`count` strings of up to 24 characters drawn from all of Unicode but surrogates."""
    draw = _Draw(seed)
    for _ in range(count):
        points = (draw.below(0x10F800) for _ in range(draw.below(25)))
        yield "".join(chr(point if point < 0xD800 else point + 0x800) for point in points)


def _fixed() -> Iterator[str]:
    yield ""
    yield from _PIECES
    for alphabet in _ALPHABETS:
        yield alphabet
        yield " ".join(alphabet)
        yield " " + "  ".join(alphabet) + "   "
        yield "".join(f"{character}{character}1" for character in alphabet)


def _special(added_tokens: Sequence[str]) -> Iterator[str]:
    """Added tokens alone, in text, doubled, cut short, in other case and after one another."""
    tokens = added_tokens[:_MOST_SPECIAL]
    for number, token in enumerate(tokens):
        yield from (token, token * 3, f"a{token}b", f" {token} ", f"\n {token}\t\n", token[:-1])
        yield from (token[1:], token.upper(), f"{token}s", f"{token[: len(token) // 2]}{token}")
        yield from (f"é{token}中", f"{token}  {token}", f"1{token}2", f"'{token}'s")
        for step in range(min(_NEIGHBOURS, len(tokens))):
            other = tokens[(number + 7 * step + 1) % len(tokens)]
            yield from (f"{token}{other}", f"{token[:-1]}{other}", f"{other} {token}{other}x")


def _contractions(vocabulary: Sequence[str]) -> Iterator[str]:
    """Words, and tokens that end in an apostrophe, with every ending in every case."""
    stems = [text[:-1] for text in vocabulary if text.endswith("'") and len(text) > 1]
    for word in (*_WORDS, *take_evenly(stems, 100)):
        yield " ".join(f"{word}'{ending}" for ending in _ENDINGS)
        yield "".join(f"{word}'{ending} {word}'{ending}x\n" for ending in _ENDINGS)


def _runs() -> Iterator[str]:
    for character in _RUN_CHARACTERS:
        for length in _RUN_LENGTHS:
            yield character * length
            yield f"x{character * length}y"
        yield character * 5000


def _words() -> Iterator[str]:
    """Words and numbers without a break, from one block of a vector unit to a page."""
    draw = _Draw(2)
    alphabets = ("abcdefghij", "ACGT", "0123456789abcdef", "xyzéüß", "абвгд", "ابتث", "中文字")
    for alphabet in alphabets:
        for length in (14, 15, 16, 17, 30, 31, 33, 62, 64, 66, 130, 500, 4000):
            yield " " + "".join(draw.one(alphabet) for _ in range(length))


@cache
def _code_points() -> tuple[str, ...]:
    """The first two planes in order, 48 at a time; one of eight where a class goes on for long."""
    points = [*range(0xD800), *range(0xE000, 0x20000)]
    near = _near_borders(points, 24)
    characters = [chr(point) for point in points if point in near or point % 8 == 0]
    blocks = ["".join(characters[start : start + 48]) for start in range(0, len(characters), 48)]
    return (*blocks, "".join(chr(point) for point in range(0x20000, 0x110000, 4099)))


@cache
def _class_borders() -> tuple[str, ...]:
    """Where the general category changes: each character between letters, digits and spaces."""
    points = [*range(0x80, 0xD800), *range(0xE000, 0x20000)]
    near = [chr(point) for point in sorted(_near_borders(points, 1))]
    groups = (near[start : start + 8] for start in range(0, len(near), 8))
    return tuple("".join(f"a{one}1{one}  {one}'s" for one in group) for group in groups)


def _near_borders(points: Sequence[int], distance: int) -> set[int]:
    """The code points at most `distance` from a change of class (letter, number, mark, ...)."""
    near: set[int] = set()
    before = ""
    for point in points:
        kind = unicodedata.category(chr(point))[0]
        if kind != before:
            near.update(range(point - distance, point + distance))
        before = kind
    return near.intersection(points)


def token_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of the tokens of the vocabulary, by id; at most 65,536, evenly spread."""
    ids = sorted(tokenizer.get_vocab(with_added_tokens=False).values())
    ids = take_evenly(ids, _MOST_TOKENS)
    texts = tokenizer.decode_batch([[number] for number in ids], skip_special_tokens=False)
    return [str(text) for text in texts]


def take_evenly(items: Sequence[_T], limit: int) -> list[_T]:
    """At most `limit` of `items`, evenly spread.

    >>> take_evenly(range(10), 4)
    [0, 3, 6, 9]
    """
    return list(items[:: -(-len(items) // limit)]) if items else []


def _join_tokens(vocabulary: Sequence[str]) -> Iterator[str]:
    """Every token of the vocabulary, 64 a string."""
    for start in range(0, len(vocabulary), _JOINED_TOKENS):
        yield "\n".join(vocabulary[start : start + _JOINED_TOKENS])


def _random_ids(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts of random ids: joins that training never saw."""
    draw = _Draw(3)
    ids = sorted(tokenizer.get_vocab(with_added_tokens=False).values())
    drawn = [[ids[draw.below(len(ids))] for _ in range(40)] for _ in range(_ID_STRINGS)]
    yield from tokenizer.decode_batch(drawn, skip_special_tokens=False)


@cache
def _long_texts() -> tuple[str, ...]:
    """Longer than any block an engine cuts: prose, no line ends, mixed scripts, white space."""
    draw = _Draw(4)
    texts = []
    for kind, length in enumerate(_LONG_TEXTS):
        parts: list[str] = []
        size = 0
        while size < length:
            part = _part(kind, draw)
            parts.append(part)
            size += len(part)
        texts.append("".join(parts))
    return tuple(texts)


def _part(kind: int, draw: _Draw) -> str:
    word = "".join(draw.one("etaoinshrdlucmf") for _ in range(1 + draw.below(9)))
    if kind == 0:
        return word + draw.one((" ", " ", " ", ", ", ". ", "\n", "'s ", "\n\n"))
    if kind == 1:
        return f"{word} "
    if kind == 2:
        return draw.one(draw.one(_ALPHABETS)) + draw.one(("", " ", word))
    return draw.one((" ", "  ", "\n", "\r\n", "\t", "\u00a0", " \n ", word[:1]))
