"""Cleaned text equals ftfy's, and the length filter equals SlimPajama's rule, one by one.

The rule is written out here from the original scripts (`preprocessing/filter.py`), independent of
`dedup.presets.normalize`.
"""

import json
import re
import string
from collections.abc import Iterator
from pathlib import Path

import ftfy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pipeline
from dedup.presets import is_short, normalize
from pipeline.core import zstd

MIN_LENGTH = 200
EVERY = 3
"""The quick tests read every third document of one shard; the slow ones read all."""


def slimpajama_clean(text: str) -> str:
    text = text.lower()
    for mark in string.punctuation:
        text = text.replace(mark, "")
    return re.sub(r"\s+", " ", text.strip())


def slimpajama_short(text: str) -> bool:
    return len(slimpajama_clean(text)) < MIN_LENGTH


def fixed(text: str) -> str:
    return ftfy.fix_text(text, normalization="NFC")


peculiar = st.text(
    st.one_of(
        st.characters(max_codepoint=0x7F),
        st.sampled_from("&;#<>\r\n\t\x00\x08\x0b\x0c\x1b\x1c\x7f\x85"),
    ),
    max_size=60,
)
fragments = st.sampled_from(
    ["&amp;", "&lt;b&gt;", "&#39;", "&eacute;", "&AMP", "\x1b[1m", "\x1b[31;1m", "\r\n", "\r",
     "\x0c", "\x00", "schÃ¶n", "â€œ", "’",
     "\ufb01", "Ａ", "e\u0301", "\ufeff", "\u2028", "<", "'", '"']
)  # fmt: skip
ascii_text = st.lists(st.one_of(peculiar, fragments), max_size=6).map("".join)


@given(ascii_text)
@example("a &lt; b")
@example("line\r\nline\rline")
@example("\x1b[36;44mcolour\x1b[0m")
@example("form\x0cfeed \x7f delete")
@example('it\'s "plain" ASCII')
def test_clean_equals_ftfy(text: str) -> None:
    assert pipeline.clean_texts([text]) == [fixed(text)]


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_clean_equals_ftfy_on_any_text(text: str) -> None:
    assert pipeline.clean_texts([text]) == [fixed(text)]


@pytest.mark.parametrize("code", range(128))
def test_clean_equals_ftfy_on_every_ascii_character(code: int) -> None:
    texts = [chr(code), f"a{chr(code)}b", f"<{chr(code)}amp;>", chr(code) * 3]
    assert pipeline.clean_texts(texts) == [fixed(text) for text in texts]


@pytest.mark.shared_data
def test_mojibake_cases(shared_data: Path) -> None:
    lines = (shared_data / "mojibake/cases.jsonl").read_text("ascii").splitlines()
    cases = [json.loads(line) for line in lines]
    found = pipeline.clean_texts([case["text"] for case in cases])
    wrong = [c["id"] for c, text in zip(cases, found, strict=True) if text != c["expected"]]
    assert len(cases) == 1849 and wrong == []


edges = st.integers(190, 210).flatmap(
    lambda n: st.lists(st.sampled_from("aZ é\t\n\u00a0\u2003.!İß٪$"), min_size=n, max_size=n + 30)
)


@given(st.text(max_size=60), st.integers(0, 20))
def test_a_beginning_tells_enough(text: str, limit: int) -> None:
    """Any limit, also where the beginning that is looked at ends in the middle of white space."""
    for padded in (text, text * 5, f"{'  .' * limit}{text}"):
        assert is_short(padded, limit) == (len(normalize(padded)) < limit)


@given(st.one_of(edges.map("".join), st.text(max_size=50)))
@example("a" * 199 + ".")
@example(" " + "a" * 200 + "\n")
@example("a" + " " * 300 + "b" * 197)
@example("İ" * 100)
def test_length_rule(text: str) -> None:
    assert normalize(text) == slimpajama_clean(text)
    assert is_short(text, MIN_LENGTH) == slimpajama_short(text)


def texts_of(path: Path) -> Iterator[str]:
    """Texts of a jsonl shard by Python's json alone; lines that it cannot use are passed over."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstd.decompress(data)
    for line in data.split(b"\n"):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("text"), str):
            yield value["text"]


def check(texts: list[str]) -> None:
    found = pipeline.clean_texts(texts)
    assert found == [fixed(text) for text in texts]
    assert [is_short(t, MIN_LENGTH) for t in found] == [slimpajama_short(t) for t in found]


@pytest.mark.shared_data
def test_hostile_texts(shared_data: Path) -> None:
    names = ("good", "bad_json", "bom", "crlf", "lone_surrogates", "nul_bytes", "path_names",
             "special_token_text", "unicode_line_separators", "zero_length_docs")  # fmt: skip
    texts = [t for n in names for t in texts_of(shared_data / f"hostile/{n}.jsonl")]
    encodable = [t for t in texts if not any(0xD800 <= ord(c) < 0xE000 for c in t)]
    assert len(encodable) > 200
    check(encodable)


@pytest.mark.shared_data
def test_pile_sample(shared_data: Path) -> None:
    texts = [t for t in texts_of(shared_data / "pile_sample/03.jsonl.zst") if len(t) < 50_000]
    check(texts[::EVERY])


@pytest.mark.slow
@pytest.mark.shared_data
def test_whole_pile_sample(shared_data: Path) -> None:
    shards = sorted((shared_data / "pile_sample").glob("*.jsonl.zst"))
    assert len(shards) == 12
    documents = 0
    for shard in shards:
        texts = list(texts_of(shard))
        check(texts)
        documents += len(texts)
    assert documents == 30_046
