"""The conditions of the fast path hold for the installed ftfy, and where they do not it is off."""

import os
import random
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import pytest
from ftfy import badness as ftfy_badness
from ftfy import chardata, fixes

from pipeline.cleaning import clean_array, derivation, known_ftfy, slow_because, tables
from pipeline.cleaning.known_ftfy import combining_classes, may_change, take_apart
from pipeline.cleaning.tables import UnprovenError, every_character


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No tables in memory, and a cache of its own."""
    monkeypatch.setenv("WAFERMILL_CACHE", str(tmp_path))
    tables.tables_or_reason.cache_clear()
    yield tmp_path
    tables.tables_or_reason.cache_clear()


def test_characters_outside_the_maps_are_left_alone_by_every_fixer() -> None:
    changed = known_ftfy.list_changed_characters()
    left_out = {*changed, *range(0x80, 0xA0), *range(0xD800, 0xE000)}
    rest = "".join(c for c in every_character() if ord(c) not in left_out)
    for fixer in known_ftfy.FIXERS:
        assert fixer(rest) == rest


def test_maps_give_plain_text_that_is_left_alone_too() -> None:
    found = derivation.build_tables()
    rows = found.rows[found.classes]
    written = np.flatnonzero(rows[:, tables.ACTION] == tables.WRITE)
    assert len(written) > 110
    for code in written.tolist():
        fixed = known_ftfy.list_changed_characters()[code]
        assert fixed.isascii() and fixed.isprintable() and len(fixed) <= len(chr(code).encode())
        assert all(fixer(fixed) == fixed for fixer in known_ftfy.FIXERS)


def test_no_changed_character_is_bad_in_a_way_that_the_scan_does_not_see() -> None:
    """Dropped characters are in none of the sets but the complement of the letters."""
    found = derivation.build_tables()
    rows = found.rows[found.classes]
    dropped = rows[rows[:, tables.ACTION] == tables.DROP]
    assert len(dropped) and (dropped[:, tables.LEFT] == 0).all()


def test_pairs_find_whatever_the_expression_finds() -> None:
    """On strings made of the characters that it knows, and on every pair of them."""
    parts = take_apart(ftfy_badness.BADNESS_RE)
    assert len(parts.pairs) == 37
    assert np.flatnonzero(parts.alone).tolist() == list(range(0x80, 0xA0))
    known = [c for c in "".join(ftfy_badness.MOJIBAKE_CATEGORIES.values()) if c != "-"] + [*"aZ ."]
    rng = random.Random(5)
    for _ in range(20_000):
        text = "".join(rng.choices(known, k=rng.randrange(2, 7)))
        if ftfy_badness.is_bad(text):
            assert any(map(parts.alone.__getitem__, map(ord, text))) or any(
                pair.left[ord(x)] and pair.right[ord(y)]
                for pair in parts.pairs
                for x, y in pairwise(text)
            )


@pytest.mark.parametrize(
    "pattern", ["(?=é)è", "[é]{2,9}", "ab", "(?i:é)", "é(?<!è)", "[éa]", "^a", "(é)\\1"]
)
def test_an_expression_that_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(UnprovenError):
        take_apart(re.compile(pattern))
    with pytest.raises(UnprovenError):
        take_apart(re.compile("é[è]", re.IGNORECASE))


def test_the_normal_form_of_everything_else_is_itself() -> None:
    """Texts of characters with the value Yes, marks in order: Python's own NFC changes nothing."""
    orders = combining_classes()
    unsure = may_change()
    yes = [c for c in range(0x30000) if c not in unsure and not 0xD800 <= c < 0xE000]
    marks = [c for c in yes if orders[c]]
    rng = random.Random(6)
    for _ in range(20_000):
        run = sorted(rng.choices(marks, k=rng.randrange(4)), key=lambda c: orders[c])
        text = "".join(map(chr, [*rng.choices(yes, k=1), *run]))
        if not orders[ord(text[0])] or not run:
            assert unicodedata.is_normalized("NFC", text), ascii(text)


def test_tables_are_kept_and_a_damaged_file_is_written_anew(fresh: Path) -> None:
    first = tables.tables_or_reason()
    path = fresh / tables.CACHE / tables.table_file()
    whole = path.read_bytes()
    assert path.is_relative_to(fresh) and len(whole) > 10_000
    for damaged in (b"", whole[:-1], whole[:5000] + b"\0" + whole[5001:], b"x" * 50):
        path.write_bytes(damaged)
        tables.tables_or_reason.cache_clear()
        again = tables.tables_or_reason()
        assert path.read_bytes() == whole
        assert not isinstance(first, str) and not isinstance(again, str)
        assert all((a == b).all() for a, b in zip(first, again, strict=True))


def test_kept_tables_are_read_not_built(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slow_because() is None
    tables.tables_or_reason.cache_clear()
    monkeypatch.setattr(derivation, "build_tables", lambda: pytest.fail("built again"))
    assert slow_because() is None


def test_text_without_suspects_needs_no_import_of_ftfy(fresh: Path) -> None:
    assert slow_because() is None
    code = """
import sys
from pipeline.cleaning import clean_array
assert clean_array(["plain", "it’s “curly”", "<b>&amp;</b>"])[1].as_py() == 'it\\'s "curly"'
sys.exit("ftfy" in sys.modules)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True, env=environment)


def test_a_cache_that_cannot_be_written(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("in the way")
    monkeypatch.setenv("WAFERMILL_CACHE", str(fresh / "file"))
    assert slow_because() is None
    assert clean_array(["it’s"]).to_pylist() == ["it's"]


def shout(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(
    ("module", "name", "value", "reason"),
    [
        (fixes, "uncurl_quotes", shout, "every known version"),
        (chardata, "HTML_ENTITY_RE", re.compile("&[a-z];"), "every known version|HTML_ENTITY_RE"),
        (known_ftfy, "_PATTERNS", {"X": (re.compile("a"), "b")}, "X is 'a'"),
        (known_ftfy, "_DEFAULTS", {}, "default configuration"),
        (known_ftfy, "READ", {}, "every known version"),
        (ftfy_badness, "BADNESS_RE", re.compile("é{1,99}"), "repeats up to 99"),
        (ftfy_badness, "BADNESS_RE", re.compile("q"), "ASCII alone"),
        (chardata, "CONTROL_CHARS", {ord("a"): None}, "plain ASCII"),
        (chardata, "SINGLE_QUOTE_RE", re.compile("‘’"), "more than one"),
    ],
)
def test_another_ftfy_does_the_work_itself(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any, reason: str
) -> None:
    if name == "HTML_ENTITY_RE":
        patterns = {name: (value, chardata.HTML_ENTITY_RE.pattern)}
        monkeypatch.setattr(known_ftfy, "_PATTERNS", patterns)
    else:
        monkeypatch.setattr(module, name, value)
    assert re.search(reason, str(slow_because()))
    texts = ["it’s plain", "schÃ¶n", ""]
    with pytest.warns(RuntimeWarning, match="cleaning is slow"):
        found = clean_array(texts)
    assert found.to_pylist() == [ftfy.fix_text(text, normalization="NFC") for text in texts]
    assert not list(fresh.rglob("*.npz"))
