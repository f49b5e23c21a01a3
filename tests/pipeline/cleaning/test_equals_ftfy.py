"""Cleaned text is ftfy's, byte for byte: on broken text of every kind and all reference data."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ftfy
import pytest
from ftfy.badness import MOJIBAKE_CATEGORIES
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cleaning import clean_array, slow_because
from pipeline.core import zstd

Broken = Callable[[int, int], list[str]]
Wrong = Callable[[list[str]], list[tuple[str, str, str]]]

PIECES = 50
PIECE = 20_000
"""The slow test takes 50 pieces of 20,000 texts: a million, in 5 to 10 minutes on one core."""

awkward = st.sampled_from(
    ["&amp;", "&am", "p;", "&", "#39;", "<", "\n", "\r", "\r\n", "\x00", "\x1b[1m", "\u2028",
     "\x85", "’", "”", "ﬁ", "Ａ", "＆", "；", "\u3000", "ｶ", "ﾞ", "e\u0301", "\u0651\u064e",
     "\u1112\u1161", "Ã", "Â", " ", "â€œ", "œ", "Œ", "é", "À", "¢", "a", "A", "\ufeff", "\ufffd",
     "€", "°", "x" * 32]
)  # fmt: skip


@given(st.lists(st.one_of(awkward, st.text(st.characters(codec="utf-8"), max_size=4)), max_size=12))
def test_any_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert clean_array([text])[0].as_py() == ftfy.fix_text(text, normalization="NFC")


def test_the_fast_path_is_in_use() -> None:
    assert slow_because() is None


def test_5_000_broken_texts(broken: Broken, wrong: Wrong) -> None:
    assert wrong(broken(PIECE // 4, 0)) == []


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES))
def test_a_million_broken_texts(broken: Broken, wrong: Wrong, piece: int) -> None:
    assert wrong(broken(PIECE, piece)) == []


TRICKY = (
    "eÅ\u206a¿", "\rÍ\x08¥", "Ø…\x00Ù–", "ａÅ‹", "aÃ\u3000b", "ãƒ\u3000", "œﬁ", "œ’", "œ\x00u",
    "œ\r\n", "&amp;amp;amp;", "&am\x00p;", "＆lt；", "&lt;&amp;lt;<", "&#10;À¢", "\rA\u0300¢",
    "&amp\u037e", "&#38;#38;", "e" + "\u0316" * 40 + "\u0301", "\u0301" * 70, "é\u0323", "é\u0316",
    "e" + "\u0301\u0316" * 40, "क\u093c\u0301", "न\u093c", "\u0b47\u0b56", "\u1100\u1161\u11a8",
    "\uac00\u11a8", "\u0651\u064e", "\u064e\x00\u0651\u0650", "\u0651’\u064e", "ﬁ\u0301",
    "<\u0338", "＜\u0338&amp;", "\x1b\x00[1m", "\r\x00\n", "\r\r\n\n\r", "\u2028\r",
)  # fmt: skip
"""One for each thing that the scan could forget."""


@pytest.mark.parametrize(
    "frame", ["{}", "a{}b", "{}\n{}", "x" * 31 + "{}" + "y" * 40, "é{}é<{}"], ids=ascii
)
def test_tricky_texts(wrong: Wrong, frame: str) -> None:
    assert wrong([frame.format(text, text) for text in TRICKY]) == []


def characters(most: int) -> Iterator[str]:
    return (chr(code) for code in range(most) if not 0xD800 <= code < 0xE000)


CONTEXTS = ("{}", "a{}", "{}a", "é{}é", "&am{}p;", "Å{}‹b", "\r{}\n", "e{}\u0323", "ã{}\u0081")


def test_every_character_of_the_first_planes(wrong: Wrong) -> None:
    """As lines of one text; a line feed is one more line."""
    assert wrong(["\n".join(characters(0x3000))]) == []
    assert wrong([context.format(c) for c in characters(0x400) for context in CONTEXTS]) == []


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS, ids=ascii)
def test_every_character(wrong: Wrong, context: str) -> None:
    assert wrong([context.format(character) for character in characters(0x110000)]) == []


def clues() -> list[str]:
    """Every character that the badness expression knows by name, and some that it does not."""
    listed = "".join(MOJIBAKE_CATEGORIES.values()).replace("-", "")
    return sorted({*listed, *"aZ 5.,&<'\x00\r\u3000ﬁ’Ａ\u0301\u0651中\t"})


@pytest.mark.slow
@pytest.mark.parametrize("frame", ["{}{}", "a{}{}b", " {}\x00{} ", "ａ{}{}ｂ"])
def test_every_pair_of_clues(wrong: Wrong, frame: str) -> None:
    assert wrong([frame.format(x, y) for x in clues() for y in clues()]) == []


BEYOND = "é" + "a" * 999_997
CUT = ("\r\n", "&amp;", "â€œ", "e\u0301", "\u0651\u064e", "<&lt;", "&lt;<", "\n", "bb\r")


def test_lines_beyond_a_million_characters(wrong: Wrong) -> None:
    """ftfy cuts them, be it in a line end, an entity, mojibake or a letter with its mark."""
    assert wrong([BEYOND + two + "’ &amp; \r\nend &gt; " for two in CUT[:3]]) == []


@pytest.mark.slow
def test_more_lines_beyond_a_million_characters(wrong: Wrong) -> None:
    texts = [BEYOND + two + "’ &amp; \r\nend &gt; " for two in CUT]
    assert wrong([*texts, "b" * 2_000_000 + "&lt;", "<\n" + "c" * 1_000_001 + "&lt;"]) == []


def test_the_state_of_one_text_does_not_reach_the_next(wrong: Wrong) -> None:
    assert (
        wrong(["<b>", "&amp;", "a\u0301", "\u0301", "\u0651", "\u064e", "Å", "‹b", "&am", "p;"])
        == []
    )
    assert (
        wrong(["a <\n &amp; \n", "&amp; \n < &amp; \n &amp;", "&lt;\n&amp;\n", "&amp;<\r&amp;"])
        == []
    )


@pytest.mark.shared_data
def test_mojibake_cases(shared_data: Path) -> None:
    lines = (shared_data / "mojibake/cases.jsonl").read_text("ascii").splitlines()
    cases = [json.loads(line) for line in lines]
    texts = [case["text"] for case in cases]
    whole = [not any("\ud800" <= c <= "\udfff" for c in text) for text in texts]
    found = clean_array([text for text, fit in zip(texts, whole, strict=True) if fit]).to_pylist()
    expected = [case["expected"] for case, fit in zip(cases, whole, strict=True) if fit]
    assert found == expected and len(found) > 1_800


def texts_below(directory: Path) -> Iterator[str]:
    """Every string in every JSON line of a directory; lines that are not JSON are passed over."""
    for path in sorted(directory.rglob("*.jsonl*")):
        data = path.read_bytes()
        if path.suffix == ".zst":
            try:
                data = zstd.decompress(data)
            except zstd.ZstdError:
                continue
        for line in data.split(b"\n"):
            try:
                yield from strings(json.loads(line))
            except (ValueError, RecursionError):
                continue


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.encode("utf-8", "replace").decode()
    elif isinstance(value, dict):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


@pytest.mark.shared_data
def test_some_reference_texts(shared_data: Path, wrong: Wrong) -> None:
    texts = [t for t in texts_below(shared_data / "eval_sets") if t]
    assert len(texts) > 3_000 and wrong(texts) == []


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["books3_like", "near_dups", "hostile", "mojibake"])
def test_all_reference_texts(shared_data: Path, wrong: Wrong, name: str) -> None:
    texts = list(texts_below(shared_data / name))
    assert len(texts) > 200 and wrong(texts) == []


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("shard", range(12))
def test_the_pile_sample(shared_data: Path, wrong: Wrong, shard: int) -> None:
    data = zstd.decompress((shared_data / f"pile_sample/{shard:02}.jsonl.zst").read_bytes())
    texts = [json.loads(line)["text"] for line in data.splitlines()]
    assert len(texts) > 2_000 and wrong(texts) == []


@pytest.mark.shared_data
def test_part_of_the_pile_sample(shared_data: Path, wrong: Wrong) -> None:
    data = zstd.decompress((shared_data / "pile_sample/07.jsonl.zst").read_bytes())
    texts = [json.loads(line)["text"] for line in data.split(b"\n")[:-1]]
    assert wrong([text for text in texts[::3] if len(text) < 50_000]) == []
