"""What is known of the installed ftfy and of Unicode, which the argument of `pipeline.cleaning`
rests on: ftfy's code by digest, its data by value.

*Normal form* (UAX 15, section 9): a text is in NFC if no character of it has NFC_Quick_Check No or
Maybe and no combining class is greater than the next within a run of marks. A character without a
decomposition can compose with the last starter before it only (D117), and not if that one has no
decomposition either and the two are not what a primary composite decomposes to: then Maybe counts
as Yes, so for Indic vowel signs and nuktas, Arabic hamzas and maddas on most letters.

*Badness*: `BADNESS_RE` is an alternation of short sequences of character sets. A sequence with two
adjacent sets, the first without ASCII, becomes a `Pair`; the sets next to the two rule out most
false alarms. Other sequences (the C1 controls) hold a set without ASCII: each of its characters is
a match to fear. Python's own parser takes the expression apart; what it finds beyond literals,
sets, branches, groups, short repeats and anchors raises UnprovenError. Anchors are ignored, so the
pairs find more than the expression, never less.
"""

import hashlib
import inspect
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any, TypeAlias

import ftfy
import numpy as np
import numpy.typing as npt
from ftfy import badness, chardata, fixes

from pipeline.cleaning.tables import ALL, UnprovenError, every_character

_HANGUL_SECONDS = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}


def combining_classes() -> npt.NDArray[np.uint8]:
    """(0x110000,) uint8: the canonical combining class of every code point.

    >>> combining_classes()[[0x301, 0x41]].tolist()
    [230, 0]
    """
    return np.fromiter(map(unicodedata.combining, every_character()), np.uint8, ALL)


@cache
def decompositions() -> dict[int, list[int]]:
    """Every character with a canonical decomposition, one step of it; Hangul syllables have none.

    >>> [hex(code) for code in decompositions()[0xE9]]
    ['0x65', '0x301']
    """
    mappings = enumerate(map(unicodedata.decomposition, every_character()))
    canonical = {code: mapping for code, mapping in mappings if mapping and mapping[0] != "<"}
    return {code: [int(part, 16) for part in parts.split()] for code, parts in canonical.items()}


def may_change() -> set[int]:
    """Every character whose NFC_Quick_Check is not Yes; Hangul syllables are Yes.

    No: its own NFC is something else. Maybe: its decomposition begins with the second character of
    a composite, so a character before it may take it up.

    >>> [0x301 in may_change(), 0xE9 in may_change(), 0x212B in may_change()]
    [True, False, True]
    """
    seconds = {*joining(), *_HANGUL_SECONDS}
    begin = {c for c in decompositions() if ord(unicodedata.normalize("NFD", chr(c))[0]) in seconds}
    return _without_itself() | seconds | begin


def joining() -> dict[int, set[int]]:
    """The second characters of primary composites, each with the first ones that it may join.

    >>> sorted(map(chr, joining()[0x30C]))[:4]
    ['A', 'C', 'D', 'E']
    """
    firsts: dict[int, set[int]] = {}
    for code, parts in decompositions().items():
        if len(parts) == 2 and code not in _without_itself():
            firsts.setdefault(parts[1], set()).add(parts[0])
    return firsts


@cache
def _without_itself() -> set[int]:
    """The characters whose NFC is something else."""
    return {c for c in decompositions() if unicodedata.normalize("NFC", chr(c)) != chr(c)}


Members: TypeAlias = npt.NDArray[np.bool_]
"""(0x110000,) bool: the code points of a set."""
_Sequence: TypeAlias = list[Members]

_ASCII = 0x80
_MOST_REPEATS = 3


@dataclass(frozen=True, eq=False)
class Pair:
    """Two adjacent sets that every match of one alternative holds, and their neighbours."""

    left: Members
    right: Members
    before: Members | None
    after: Members | None


@dataclass(frozen=True, eq=False)
class Badness:
    """Where a match of the expression can be: at a pair, or at one of the characters `alone`."""

    pairs: tuple[Pair, ...]
    alone: Members


def take_apart(expression: "re.Pattern[str]") -> Badness:
    """The pairs of an expression.

    >>> found = take_apart(re.compile("[a-z][\\xe0-\\xff] [\\u2018]|[\\x80-\\x9f]|\\xc2[ ]", re.X))
    >>> len(found.pairs), found.alone.sum().item(), found.pairs[1].right.nonzero()[0].tolist()
    (2, 32, [32])
    """
    if expression.flags & ~(re.UNICODE | re.VERBOSE):
        raise UnprovenError(f"the badness expression has flags {expression.flags}")
    pairs, alone = [], np.zeros(ALL, np.bool_)
    for sets in _sequences(parser.parse(expression.pattern, expression.flags)):
        at = _best_pair(sets)
        if at is None:
            alone |= _rarest(sets)
        else:
            before = sets[at - 1] if at > 0 else None
            after = sets[at + 2] if at + 2 < len(sets) else None
            pairs.append(Pair(sets[at], sets[at + 1], before, after))
    return Badness(tuple(pairs), alone)


def _best_pair(sets: _Sequence) -> int | None:
    """Where the pair begins that has the most neighbours to check, or else the fewest members."""
    able = [i for i in range(len(sets) - 1) if not sets[i][:_ASCII].any()]

    def worth(i: int) -> tuple[int, int]:
        neighbours = (i > 0) + (i + 2 < len(sets))
        return neighbours, -int(np.count_nonzero(sets[i]) * np.count_nonzero(sets[i + 1]))

    return max(able, key=worth, default=None)


def _rarest(sets: _Sequence) -> Members:
    able = [members for members in sets if not members[:_ASCII].any()]
    if not able:
        raise UnprovenError("the badness expression can match ASCII alone")
    return min(able, key=np.count_nonzero)


def _sequences(tree: Any) -> list[_Sequence]:
    """Every way through the expression, as sequences of sets."""
    ways: list[_Sequence] = [[]]
    for kind, value in tree:
        if kind is op.AT:
            continue
        if kind is op.BRANCH:
            further = [way for branch in value[1] for way in _sequences(branch)]
        elif kind is op.SUBPATTERN and not value[1] and not value[2]:
            further = _sequences(value[3])
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            further = _repeated(*value)
        else:
            further = [[_members(kind, value)]]
        ways = [way + more for way in ways for more in further]
    return ways


def _repeated(least: int, most: int, tree: Any) -> list[_Sequence]:
    if most > _MOST_REPEATS:
        raise UnprovenError(f"the badness expression repeats up to {most} times")
    one = _sequences(tree)
    ways: list[_Sequence] = []
    for count in range(least, most + 1):
        times: list[_Sequence] = [[]]
        for _ in range(count):
            times = [way + more for way in times for more in one]
        ways += times
    return ways


def _members(kind: Any, value: Any) -> Members:
    members = np.zeros(ALL, np.bool_)
    if kind is not op.IN:
        _add(members, kind, value)
        return members
    negated = value[0][0] is op.NEGATE
    for part in value[negated:]:
        _add(members, *part)
    return ~members if negated else members


def _add(members: Members, kind: Any, value: Any) -> None:
    if kind is op.LITERAL:
        members[value] = True
    elif kind is op.RANGE:
        members[value[0] : value[1] + 1] = True
    elif kind is op.CATEGORY:
        members |= _category(value)
    elif kind is op.ANY:
        members[:] = True
    else:
        raise UnprovenError(f"the badness expression holds {kind}, which is not understood")


@cache
def _category(name: Any) -> Members:
    classes = {op.CATEGORY_WORD: r"\w", op.CATEGORY_SPACE: r"\s", op.CATEGORY_DIGIT: r"\d"}
    if name not in classes:
        raise UnprovenError(f"the badness expression holds {name}, which is not understood")
    members = np.zeros(ALL, np.bool_)
    members[[match.start() for match in re.finditer(classes[name], every_character())]] = True
    return members


_FUNCTIONS: dict[ModuleType, tuple[str, ...]] = {
    ftfy: ("fix_text", "fix_and_explain", "_try_fix", "_config_from_kwargs", "fix_encoding",
           "fix_encoding_and_explain", "_fix_encoding_one_step_and_explain"),
    fixes: ("unescape_html", "_unescape_fixup", "remove_terminal_escapes", "uncurl_quotes",
            "fix_latin_ligatures", "fix_character_width", "fix_line_breaks", "fix_surrogates",
            "convert_surrogate_pair", "remove_control_chars", "fix_c1_controls", "_c1_fixer"),
    badness: ("is_bad",),
    chardata: ("possible_encoding",),
}  # fmt: skip

READ = {
    "38b2e09e3ff6339bb04bf99c2ce9456126198c3335e2fb5a8ce0991f21df4169": "6.3.0",
    "494b6734a8d8d982945a84bad0dad2bbcf5f5504834809e6a682fff1ddc1da96": "6.3.1",
}
"""sha256 of the functions' sources, joined by newlines, in the order above."""

_DEFAULTS: dict[str, Any] = {
    "unescape_html": "auto", "remove_terminal_escapes": True, "fix_encoding": True,
    "restore_byte_a0": True, "replace_lossy_sequences": True, "decode_inconsistent_utf8": True,
    "fix_c1_controls": True, "fix_latin_ligatures": True, "fix_character_width": True,
    "uncurl_quotes": True, "fix_line_breaks": True, "fix_surrogates": True,
    "remove_control_chars": True, "normalization": "NFC", "max_decode_length": 1_000_000,
    "explain": True,
}  # fmt: skip

_PATTERNS = {
    "HTML_ENTITY_RE": (chardata.HTML_ENTITY_RE, r"&#?[0-9A-Za-z]{1,24};"),
    "ANSI_RE": (fixes.ANSI_RE, "\033\\[((?:\\d|;)*)([a-zA-Z])"),
    "C1_CONTROL_RE": (chardata.C1_CONTROL_RE, r"[\x80-\x9f]"),
    "SURROGATE_RE": (fixes.SURROGATE_RE, "[\ud800-\udfff]"),
}

FIXERS: tuple[Callable[[str], str], ...] = (
    fixes.fix_c1_controls,
    fixes.fix_latin_ligatures,
    fixes.fix_character_width,
    fixes.uncurl_quotes,
    fixes.fix_line_breaks,
    fixes.fix_surrogates,
    fixes.remove_terminal_escapes,
    fixes.remove_control_chars,
)
"""The fixers after the encoding and before the normalisation, in `fix_and_explain`'s order."""


def require_known_code() -> None:
    """Raise UnprovenError unless ftfy's functions, defaults and short patterns were read."""
    digest = code_digest()
    if digest not in READ:
        raise UnprovenError(
            f"ftfy {ftfy.__version__}: its functions differ from those of every known version"
        )
    config = ftfy.TextFixerConfig()._asdict()
    if config != _DEFAULTS:
        raise UnprovenError(f"ftfy {ftfy.__version__}: its default configuration differs")
    for name, (expression, pattern) in _PATTERNS.items():
        if expression.pattern != pattern or expression.flags != 32:
            raise UnprovenError(f"ftfy {ftfy.__version__}: {name} is {expression.pattern!r}")


def code_digest() -> str:
    """sha256 of the sources of the functions that the argument is about."""
    try:
        sources = [
            inspect.getsource(getattr(module, name))
            for module, names in _FUNCTIONS.items()
            for name in names
        ]
    except (AttributeError, OSError, TypeError) as error:
        raise UnprovenError(f"ftfy {ftfy.__version__}: no source to compare: {error}") from error
    return hashlib.sha256("\n".join(sources).encode()).hexdigest()


def list_changed_characters() -> dict[int, str]:
    """What the fixers make of every character that they change, taken alone.

    C1 controls, which the fixers before them depend on, and surrogates are left out.
    """
    codes = {0x0D, 0x1B, 0x2028, 0x2029}
    for table in (chardata.CONTROL_CHARS, chardata.LIGATURES, chardata.WIDTH_MAP):
        codes.update(table)
    for quotes in (chardata.SINGLE_QUOTE_RE, chardata.DOUBLE_QUOTE_RE):
        for match in quotes.finditer(every_character()):
            if len(match.group()) != 1:
                raise UnprovenError(f"{quotes.pattern!r} matches more than one character")
            codes.add(match.start())
    codes -= {*range(0x80, 0xA0), *range(0xD800, 0xE000)}
    return {code: _fix(chr(code)) for code in sorted(codes)}


def _fix(text: str) -> str:
    for fixer in FIXERS:
        text = fixer(text)
    return text
