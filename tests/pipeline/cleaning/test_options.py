"""`clean.ftfy`: whatever is switched off, texts become what ftfy makes of them with that option."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ftfy
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.cleaning import clean_array
from pipeline.core.errors import ConfigError
from tests.slow import mark_slow

Broken = Callable[[int, int], list[str]]
OFF = [name for name, value in ftfy.TextFixerConfig._field_defaults.items() if value is True]
OFF.remove("explain")
CHOICES: list[dict[str, Any]] = [
    *({name: False} for name in OFF),
    *({"unescape_html": value} for value in (True, False)),
    *({"normalization": form} for form in (None, "NFD", "NFKC", "NFKD")),
    dict.fromkeys(OFF, False),
    {"uncurl_quotes": False, "fix_character_width": False, "normalization": None},
]
PIECES = [
    "“so”", "it’s", "ﬁne", "ＬＯＵＤ", "ｶﾅ", "&lt;b&gt;", "&amp;", "<", "\r\n", "\r", "\n",
    "\x1b[31m", "schÃ¶n", "â€œ", "\x85", "\x92", "e\u0301", "\u0301", "a\ufeffb", "\x07",
    "l’humanitÃ©", "à", "Ã\xa0", "plain words", " & ", "\u2028", "½", "東京", "voilÃ le",
    "â\ufffd\ufffd",
]  # fmt: skip


def differing(texts: list[str], chosen: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = clean_array(texts, chosen).to_pylist()
    expected = [ftfy.fix_text(text, **{"normalization": "NFC", **chosen}) for text in texts]
    return [row for row in zip(texts, found, expected, strict=True) if row[1] != row[2]]


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
def test_broken_texts(chosen: dict[str, Any], broken: Broken) -> None:
    assert not differing(broken(400, 11), chosen)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.sampled_from(CHOICES))
def test_any_pieces(text: str, chosen: dict[str, Any]) -> None:
    assert not differing([text, f"first line\n{text}\nlast"], chosen)


@pytest.mark.parametrize(
    "chosen",
    mark_slow([{"uncurl_quotes": False}, {"unescape_html": True}], {"uncurl_quotes": False}),
    ids=str,
)
def test_lines_beyond_a_million_characters(chosen: dict[str, Any]) -> None:
    long = "a" * 999_999 + "“&lt;”" + "b" * 1_000_000 + "<&gt;\n‘&amp;’"
    assert not differing([long], chosen)


def test_only_lines_that_a_step_touches_go_through_ftfy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    by_ftfy = ftfy.fix_and_explain
    monkeypatch.setattr(
        ftfy, "fix_and_explain", lambda text, c: asked.append(text) or by_ftfy(text, c)
    )
    text = "plain\nnaïve café\n東京は晴れ\n“curly”\nplain again\n"
    cleaned = clean_array([text], {"uncurl_quotes": False})
    assert cleaned.to_pylist() == [text]
    assert asked == ["“curly”\n"]


def test_arrays(broken: Broken) -> None:
    texts = broken(50, 3)
    expected = clean_array(texts, {"uncurl_quotes": False})
    array = pa.chunked_array([texts[:20], texts[20:]], pa.large_string())
    assert clean_array(array, {"uncurl_quotes": False}).equals(expected)


def test_a_run_and_a_search_in_it(tmp_path: Path, prep: Callable[..., Any]) -> None:
    text = "He said “it’s fine” and went on to the harbour. " * 8
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    config = {
        "inputs": [{"name": "a", "path": "a.jsonl"}],
        "clean": {"ftfy": {"uncurl_quotes": False}},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    pipeline.run(tmp_path / "c.yaml", tmp_path / "run", 0)
    (shard,) = (tmp_path / "run" / "documents").glob("*.arrow")
    with pa.memory_map(str(shard)) as file:
        assert pa.ipc.open_file(file).read_all()["text"].to_pylist() == [text]
    found = prep("search", tmp_path / "run", "said “it’s fine”", "--json")
    assert found.code == 0, found.err
    assert len(json.loads(found.out)["documents"]) == 1, found.out


def test_options_of_what_is_left_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    clean = {"fix_text": False, "ftfy": {"uncurl_quotes": False}}
    config = {"inputs": [{"name": "a", "path": "a.jsonl"}], "clean": clean}
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="expected no options of ftfy with fix_text: false"):
        pipeline.run(tmp_path / "c.yaml", tmp_path / "run", 0)
