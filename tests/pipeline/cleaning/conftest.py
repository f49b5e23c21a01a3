"""Broken text by the thousand: every kind of damage that ftfy knows, mixed at random by seed."""

import random
import unicodedata
from collections.abc import Callable
from functools import cache

import ftfy
import numpy as np
import pytest
from ftfy.badness import BADNESS_RE, MOJIBAKE_CATEGORIES
from ftfy.chardata import CHARMAP_ENCODINGS, CONTROL_CHARS, LIGATURES, WIDTH_MAP

from pipeline.cleaning import clean_array
from pipeline.cleaning.known_ftfy import take_apart

SENTENCES = (
    "The café's naïve “résumé” – it’s £5 or 5 €… ", "Été à Noël, œuvre d’art, cœur, Œdipe ! ",
    "Größe, Straße, „Übermut“ ‚so‘ ", "ÇA VA À L’ÉCOLE, NON ? ", "São Paulo: NÃO É Â VOCÊ ",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. ", "Żółć „gęślą” jaźń ", "Γειά σου Κόσμε· ΐ ",
    "Съешь ещё «этих» булок. ", "ґанок, Їжак, І ", "مرحبا بالعالم، كَتَبَ شَدَّةٌ ",
    "שָׁלוֹם עולם ", "नमस्ते दुनिया क़लम ", "বাংলা ড় য় ", "ภาษาไทย น้ำ ", "日本語のテキスト、ｶﾞｷﾞ ",
    "한국어 텍스트 ", "中文，全角ＡＢＣ\u3000！ ", "Việt Nam: ườ ế ", "İstanbul’da ğ ş ı ",
    "👩\u200d👩\u200d👧\u200d👦 🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f ❤️ ",
    "│┌─┐░▒▓█ ┤ò├ ", "x² ± 3 µm × ½ ≠ ≤ ∞ √∂ ", "© ® ™ § ¶ ° ª º ¿ ¡ ",
)  # fmt: skip
ENTITIES = (
    "&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&#x2019;", "&eacute;", "&EACUTE;", "&SZLIG;",
    "&nbsp;", "&hellip;", "&amp;amp;", "&amp;lt;", "&#10;", "&#13;", "&#x1b;[1m", "&#0;",
    "&#xD83D;", "&#128;", "&#xAD;", "&NewLine;", "&Tab;", "&fflig;", "&nosuch;", "&;", "&#;",
    "&#x;", "&a", "&&", "& ", "&amp", "&amp\u037e", "&\x00amp;", "&am\ufeffp;", "\uff06amp;",
    "&\uff41mp\uff1b", "&a\ufb01;", "&\ufb01lig;", "&#\u0663;", "&#768;", "&#x301;",
    "&Acirc;&nbsp;",
)  # fmt: skip
CONTROLS = (
    *map(chr, sorted(CONTROL_CHARS)), *map(chr, range(0x80, 0xA0)),
    "\x1b[31;1m", "\x1b[0m", "\x1b[", "\x1b",
)  # fmt: skip
BREAKS = (
    "\n", "\n", "\r\n", "\r", "\u2028", "\u2029", "\x85", "\n\r", "\r\r\n", "\x0c", "\x0b",
    "\r\x00\n", "\t",
)  # fmt: skip
MARKS = tuple(chr(c) for c in range(0x20000) if unicodedata.combining(chr(c)))
PARTS = (unicodedata.decomposition(chr(c)).split() for c in range(0x20000))
COMPOSITES = [parts for parts in PARTS if len(parts) == 2 and parts[0][0] != "<"]
FIRSTS = tuple(chr(int(first, 16)) for first, _ in COMPOSITES)
SECONDS = tuple(sorted({chr(int(second, 16)) for _, second in COMPOSITES}))
JAMO = tuple(map(chr, (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3))))
SHAPED = (*map(chr, LIGATURES), *map(chr, WIDTH_MAP))
QUOTES = tuple("‘’‚‛“”„‟ʼ'\"«»‹›")
CLUES = tuple("".join(MOJIBAKE_CATEGORIES.values()).replace("-", "") + "ÂÃâ€œ à×²ØÙ°√≈вЂГўВЂВ ā")
SINGLETONS = tuple(
    "\u037e\u0387\u212a\u2126\u1fef\u1ffd\u2000\u0344\u0958\uf900\U0002f800\ufb1f\u226e"
)


def _mojibake(rng: random.Random) -> str:
    text = rng.choice(SENTENCES)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        codec = rng.choice(CHARMAP_ENCODINGS)
        errors = rng.choice(("strict", "replace", "ignore"))
        try:
            text = text.encode().decode(codec.removeprefix("sloppy-"), errors)
        except UnicodeDecodeError:
            text = text.encode().decode(codec)
    if rng.random() < 0.2:
        text = text.replace("\xa0", " ")
    start = rng.randrange(len(text))
    return text[start : start + rng.randrange(1, 40)]


def _unit(rng: random.Random) -> str:
    """One character of mojibake between others, so that little tells what it is."""
    codec = rng.choice(("latin-1", "windows-1252", "windows-1251", "macroman"))
    character = chr(rng.randrange(0x80, rng.choice((0x100, 0x180, 0x500, 0x2200))))
    beside = rng.choice(("a", "Z", " ", "5", "é", "ａ", "ﬁ", "\r", "\n", ""))
    return (
        beside + character.encode().decode(codec, "replace") + rng.choice(("b", "ｂ", " ", "”", ""))
    )


def _bad(rng: random.Random) -> str:
    """Characters that one way of the badness expression may match, or nearly."""
    sets = rng.choice(_pairs())
    return "".join(rng.choice(members) for members in sets if members)


@cache
def _pairs() -> list[tuple[str, str, str, str]]:
    """A few members of each set: before, left, right, after."""
    rng = random.Random(0)

    def some(members: "np.ndarray[tuple[int], np.dtype[np.bool_]] | None") -> str:
        if members is None:
            return ""
        codes = np.flatnonzero(members).tolist()
        return "".join(map(chr, codes if len(codes) < 500 else rng.choices(codes[:3000], k=99)))

    pairs = take_apart(BADNESS_RE).pairs
    return [(some(p.before), some(p.left), some(p.right), some(p.after)) for p in pairs]


def _salted(rng: random.Random, text: str) -> str:
    """With something put in, or written another way, that repairs will undo."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        character = text[at : at + 1]
        other = rng.choice(
            (
                rng.choice("\x00\x08\x7f\ufeff\u206a\r\u3000’”ﬁ\n") + character,
                unicodedata.normalize("NFD", character),
                f"&#{ord(character or ' ')};",
                chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character,
                rng.choice(("&#10;", "&NewLine;", "\r", "&#13;", "&lt;", "&amp;")) + character,
            )
        )
        text = text[:at] + other + text[at + 1 :]
    return text


def _any_character(rng: random.Random) -> str:
    code = rng.choice((0x250, 0x3000, 0x10000, 0x20000, 0x110000))
    drawn = rng.randrange(code)
    return "" if 0xD800 <= drawn < 0xE000 else chr(drawn)


def _some(rng: random.Random, kinds: tuple[str, ...], most: int) -> str:
    return "".join(rng.choices(kinds, k=rng.randrange(1, most + 1)))


FRAGMENTS: tuple[Callable[[random.Random], str], ...] = (
    _mojibake,
    _mojibake,
    lambda rng: rng.choice(SENTENCES),
    lambda rng: unicodedata.normalize("NFD", rng.choice(SENTENCES)),
    lambda rng: rng.choice("abXY ") * rng.randrange(70),
    lambda rng: _some(rng, ENTITIES, 3),
    _bad,
    lambda rng: _salted(rng, _bad(rng)),
    lambda rng: _salted(rng, _mojibake(rng)),
    lambda rng: _salted(rng, _unit(rng)),
    lambda rng: "&" + "#" * rng.randrange(2) + "aZ09"[rng.randrange(4)] * rng.randrange(28) + ";",
    lambda rng: rng.choice(CONTROLS),
    lambda rng: rng.choice(BREAKS),
    lambda rng: rng.choice(BREAKS),
    lambda rng: _some(rng, MARKS, 5),
    lambda rng: _some(rng, SECONDS, 3),
    lambda rng: rng.choice(FIRSTS) + _some(rng, (*SECONDS, *MARKS[::9]), 3),
    lambda rng: "e" + _some(rng, MARKS, 90) if rng.random() < 0.2 else "",
    lambda rng: _some(rng, JAMO, 4),
    lambda rng: _some(rng, SHAPED, 4),
    lambda rng: _some(rng, QUOTES, 3),
    lambda rng: _some(rng, CLUES, 6),
    lambda rng: _some(rng, (*CLUES, *CONTROLS, *MARKS[:99], *QUOTES), 6),
    lambda rng: rng.choice(SINGLETONS),
    lambda rng: rng.choice(("<", "<b>", "</p>", "< ", ">")),
    lambda rng: "".join(_any_character(rng) for _ in range(rng.randrange(1, 8))),
    lambda rng: rng.choice(("e", "o", "A", "é", "क", "ড", "ｶ", "ﬁ")) + _some(rng, MARKS, 3),
)  # fmt: skip


GENTLE: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: rng.choice(SENTENCES)[: rng.randrange(1, 20)],
    lambda rng: rng.choice("abXY ") * rng.randrange(70),
    lambda rng: rng.choice(
        ("&", "&a", "&#", "AT&T ", "&x", "\uff06", "a", "amp", ";", "\uff1b", "#")
    ),
    lambda rng: rng.choice(("\x00", "\x08", "\x7f", "\ufeff", "\u206a", "\ufffc")),
    lambda rng: rng.choice(("\n", "\r\n", "\r", "\n", "\t", "\x0c")),
    lambda rng: _some(rng, MARKS, 4),
    lambda rng: rng.choice(FIRSTS) + _some(rng, SECONDS, 2),
    lambda rng: _some(rng, tuple("ＡＢ！；＆＜　ﬁﬃŉĳǱ"), 2),
    lambda rng: _some(rng, QUOTES, 2),
    lambda rng: rng.choice(CLUES),
    _unit,
    lambda rng: _salted(rng, _bad(rng)),
    lambda rng: _salted(rng, _unit(rng)),
    lambda rng: rng.choice(("<", "<", ">", "\uff1c")),
    lambda rng: rng.choice("éàçœÂÃØ√ѓàж中あ가न"),
)
"""Damage that mostly leaves a line on the fast path."""


def broken_texts(count: int, seed: int) -> list[str]:
    """`count` texts of one to ten fragments; the same for the same seed."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        kinds = rng.choice((FRAGMENTS, GENTLE))
        text = "".join(rng.choice(kinds)(rng) for _ in range(rng.randrange(1, 11)))
        texts.append(_salted(rng, text) if rng.random() < 0.1 else text)
    return texts


def by_ftfy(text: str) -> str:
    return str(ftfy.fix_text(text, normalization="NFC"))


def differing(texts: list[str]) -> list[tuple[str, str, str]]:
    """The texts whose cleaning is not ftfy's: (text, ours, ftfy's)."""
    found = clean_array(texts).to_pylist()
    expected = [by_ftfy(text) for text in texts]
    return [row for row in zip(texts, found, expected, strict=True) if row[1] != row[2]]


@pytest.fixture(scope="session")
def broken() -> Callable[[int, int], list[str]]:
    return broken_texts


@pytest.fixture(scope="session")
def wrong() -> Callable[[list[str]], list[tuple[str, str, str]]]:
    return differing
