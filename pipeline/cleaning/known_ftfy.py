"""Which ftfy the argument of `pipeline.cleaning` holds for: its code by digest, its data by value.

The fast path is derived from what ftfy's functions do, so their source must be one that was read.
Its data (the badness expression, the maps) may change: the tables are built from what is installed.
"""

import hashlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import ftfy
from ftfy import badness, chardata, fixes

from pipeline.cleaning.characters import every_character
from pipeline.cleaning.errors import UnprovenError

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
    fixes.fix_c1_controls, fixes.fix_latin_ligatures, fixes.fix_character_width,
    fixes.uncurl_quotes, fixes.fix_line_breaks, fixes.fix_surrogates,
    fixes.remove_terminal_escapes, fixes.remove_control_chars,
)  # fmt: skip
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
    for name, (found, pattern) in _PATTERNS.items():
        if found.pattern != pattern or found.flags != 32:
            raise UnprovenError(f"ftfy {ftfy.__version__}: {name} is {found.pattern!r}")


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


def changed_characters() -> dict[int, str]:
    """What the fixers make of every character that they change, taken alone.

    C1 controls, which the fixers before them depend on, and surrogates are left out.
    """
    found = {0x0D, 0x1B, 0x2028, 0x2029}
    for table in (chardata.CONTROL_CHARS, chardata.LIGATURES, chardata.WIDTH_MAP):
        found.update(table)
    for quotes in (chardata.SINGLE_QUOTE_RE, chardata.DOUBLE_QUOTE_RE):
        for match in quotes.finditer(every_character()):
            if len(match.group()) != 1:
                raise UnprovenError(f"{quotes.pattern!r} matches more than one character")
            found.add(match.start())
    found -= {*range(0x80, 0xA0), *range(0xD800, 0xE000)}
    return {code: _fixed(chr(code)) for code in sorted(found)}


def _fixed(text: str) -> str:
    for fixer in FIXERS:
        text = fixer(text)
    return text
