"""Mixtures of groups: which group a document is in, whole runs against plain Python, errors."""

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.config.prep import load_config
from pipeline.config.sections import MixtureConfig
from pipeline.core import rng
from pipeline.core.errors import ConfigError
from pipeline.stages.mixture.groups import find_groups
from pipeline.stages.mixture.quotas import ALL
from pipeline.stories.verify import verify_run

Prep = Callable[..., Any]
GROUPS = "groups: {wiki: source = 'Wiki', long: word_count > 120 and tokens > 10, rest: true}"
MIXED = (
    f"mixture={{{GROUPS}, epochs: {{wiki: 2.5, long: 0.5}}}}",
    "signals.gopher=true", "read.task_bytes=60000",
)  # fmt: skip
SEED = 7

Values = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.floats(-2, 2)))
)


@settings(max_examples=30)
@given(Values)
def test_the_first_that_is_true(rows: list[tuple[str | None, float | None]]) -> None:
    """Later ones do not count; NULL is not true."""
    schema = pa.schema([("source", pa.string()), ("x", pa.float64())])
    table = pa.Table.from_pylist([{"source": s, "x": x} for s, x in rows], schema)
    named = [("a", "source = 'a'"), ("high", "x > 0.5"), ("not_a", "source <> 'a'")]
    expected = []
    for source, x in rows:
        holds = (source == "a", x is not None and x > 0.5, source not in ("a", None))
        expected.append(holds.index(True) if any(holds) else -1)
    assert find_groups(named, table).tolist() == expected


@pytest.fixture(scope="module")
def grouped(corpus: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grouped") / "run"
    pipeline.run(corpus.config, out, 0, overrides=MIXED)
    return out


def documents(run: Path) -> list[dict[str, Any]]:
    """The kept documents of train, each with its group as plain Python finds it."""
    signals = pa.concat_tables(
        [pq.read_table(path) for path in sorted((run / "signals").iterdir())]
    )
    words = dict(
        zip(signals["doc_key"].to_pylist(), signals["word_count"].to_pylist(), strict=True)
    )
    rows = pq.read_table(run / "documents.parquet").to_pylist()
    train = [row for row in rows if row["state"] == "kept" and row["split"] == "train"]
    for row in train:
        is_long = words[row["doc_key"]] > 120 and row["tokens"] > 10
        row["group"] = "wiki" if row["source"] == "Wiki" else "long" if is_long else "rest"
    return train


def stream(run: Path) -> list[bytes]:
    shards = sorted((run / "stream").glob("train-*.arrow"))
    tables = [pa.ipc.open_file(pa.memory_map(str(shard))).read_all() for shard in shards]
    return list(pa.concat_tables(tables)["doc_key"].to_pylist())


def copies_of(key: bytes, epochs: Fraction) -> int:
    """Copy c is there when c + u(c) < epochs, counted one by one."""
    copies, pair = 0, np.frombuffer(key, np.uint64).reshape(1, 2)
    while copies + Fraction(int(rng.rank(pair, SEED, f"mixture/{copies}")[0]), ALL) < epochs:
        copies += 1
    return copies


def test_a_run_of_groups(grouped: Path) -> None:
    """Every document as often as its group says."""
    verify_run(grouped)
    epochs = {"wiki": Fraction(5, 2), "long": Fraction(1, 2), "rest": Fraction(1)}
    train = documents(grouped)
    assert len(list((grouped / "documents").iterdir())) > 3, "several tasks"
    assert {row["group"] for row in train} == set(epochs)
    expected = Counter({r["doc_key"]: copies_of(r["doc_key"], epochs[r["group"]]) for r in train})
    assert Counter(stream(grouped)) == +expected


def test_the_books(grouped: Path) -> None:
    ledger = json.loads((grouped / "ledger.json").read_bytes())["mixture"]
    placed, train = Counter(stream(grouped)), documents(grouped)
    for name, expression in (("wiki", "source = 'Wiki'"), ("rest", "true")):
        rows = [row for row in train if row["group"] == name]
        assert ledger[name]["group"] == expression
        assert ledger[name]["documents"] == len(rows)
        assert ledger[name]["tokens"] == sum(row["tokens"] for row in rows)
        assert ledger[name]["stream_tokens"] == sum(
            row["tokens"] * placed[row["doc_key"]] for row in rows
        )
    assert set(ledger) == {"wiki", "long", "rest"}
    report = (grouped / "report.html").read_text()
    assert "<th>Group</th>" in report
    assert "after groups were repeated" in report


def test_another_expression_measures_nothing(grouped: Path, corpus: Any, prep: Prep) -> None:
    before = (grouped / "groups/000000.parquet").read_bytes()
    more = (*MIXED, "mixture.groups.long='word_count > 130'")
    options = [item for setting in more for item in ("--set", setting)]
    ended = prep("run", corpus.config, "--out", grouped, "--workers", 0, *options)
    assert ended.code == 0, ended.err
    assert "signals: reused" in ended.err
    assert "documents: reused" in ended.err
    assert "note: groups: rebuilding, changed: settings.groups" in ended.err
    assert "\u2503 group " in ended.out
    verify_run(grouped)
    pipeline.run(corpus.config, grouped, 0, overrides=MIXED)
    assert (grouped / "groups/000000.parquet").read_bytes() == before


def test_groups_of_sources_are_a_mixture_of_sources(corpus: Any, tmp_path: Path) -> None:
    """Weights, copies and order: the same stream, without any signal."""
    weights = "weights: {Wiki: 3, Code: 1}, default: 0, tokens: 9000"
    groups = "groups: {Wiki: source = 'Wiki', Code: source = 'Code', others: true}"
    by_source, by_group = tmp_path / "sources", tmp_path / "groups"
    pipeline.run(corpus.config, by_source, 0, overrides=(f"mixture={{{weights}}}",))
    pipeline.run(corpus.config, by_group, 0, overrides=(f"mixture={{{groups}, {weights}}}",))
    assert stream(by_group) == stream(by_source)
    assert not (by_group / "signals").exists()
    ledgers = [
        json.loads((run / "ledger.json").read_bytes())["mixture"] for run in (by_source, by_group)
    ]
    expression = ledgers[1]["Wiki"].pop("group")
    assert (ledgers[1]["Wiki"], expression) == (ledgers[0]["Wiki"], "source = 'Wiki'")


@pytest.mark.parametrize(
    ("section", "code", "message"),
    [
        ("{groups: {a: quality > 1}}", 2, 'groups.a: quality > 1: Binder Error: Referenced'),
        ("{groups: {a: tokens}}", 2, "groups.a: tokens: is of type UINTEGER; expected true"),
        ("{groups: {a: tokens > 1}, epochs: {b: 1}}", 2, "'b' is none of them"),
        ("{groups: {a: tokens > 1}, weights: {}}", 2, "a weight for each group, or default; a has"),
        ("{groups: {}}", 2, "at least 1 item"),
        ("{groups: {a: source = 'Wiki'}}", 3, "mixture.groups: in no group: "),
        ("{groups: {a: source = 'Wiki'}}", 3, '(source = "'),
        ("{groups: {a: cast(source as int) > 1}}", 2, "Conversion Error: Could not convert string"),
        ("{groups: {a: tokens < 0, b: true}, weights: {a: 1, b: 1}}", 3, "group 'a' has no"),
    ],
)  # fmt: skip
def test_errors(section: str, code: int, message: str, corpus: Any, grouped: Path,
                prep: Prep) -> None:  # fmt: skip
    """One line each, whenever it is found."""
    out = grouped.parent / "errors"
    setting = f"mixture={section}"
    ended = prep("run", corpus.config, "--out", out, "--workers", 0, "--set", setting)
    assert ended.code == code, ended.err
    assert message in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err


def test_without_duckdb(corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    from pipeline.filters import expression

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(expression, "version", missing)
    with pytest.raises(
        ConfigError, match=r"^mixture\.groups: needs duckdb, .*wafermill\[signals\]"
    ):
        pipeline.plan(corpus.config, overrides=("mixture={groups: {a: true}}",))


def test_the_name_of_a_column_is_taken(corpus: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def n(text, meta):\n    return 1\n")
    own = f"signals.custom=[{{name: tokens, function: '{tmp_path}/own.py:n'}}]"
    with pytest.raises(ConfigError, match=r"tokens is a column of documents too; give the signal"):
        pipeline.plan(corpus.config, overrides=("mixture={groups: {a: true}}", own))


def test_nothing_is_written_of_groups_that_are_not_there(tmp_path: Path) -> None:
    assert "groups" not in MixtureConfig().model_dump()
    path = tmp_path / "c.yaml"
    path.write_text("inputs: [{name: a, path: .}]\nmixture: {groups: {b: x > 1, a: true}}\n")
    groups = load_config(path).config.mixture.groups
    assert groups is not None
    assert list(groups) == ["b", "a"], "the order is that of the file"


def test_typed_columns(tmp_path: Path) -> None:
    """Also in a generation whose inputs have none: NULL is not true."""
    for name, years in (("old", [1990, 2015, None, 2020]), ("new", [None] * 4)):
        records = [
            {"text": f"{name} {number} " * 40, "year": year} for number, year in enumerate(years)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    old = {"name": "old", "path": "old.jsonl", "meta_fields": {"year": "int"}}
    config = {
        "inputs": [old],
        "dedup": {"preset": "none"},
        "pack": {"append": True, "validation_share": 0},
        "mixture": {"groups": {"late": "meta_year >= 2015", "rest": True}, "epochs": {"late": 2}},
    }
    for inputs in ([old], [old, {"name": "new", "path": "new.jsonl"}]):
        (tmp_path / "c.yaml").write_text(json.dumps({**config, "inputs": inputs}))
        pipeline.run(tmp_path / "c.yaml", tmp_path / "run", 0)
    ledgers = [
        json.loads((run / "ledger.json").read_bytes())["mixture"]
        for run in (tmp_path / "run", tmp_path / "run/generations/000001")
    ]
    counts = [(one["late"]["documents"], one["rest"]["documents"]) for one in ledgers]
    assert counts == [(2, 2), (0, 4)]
    assert ledgers[0]["late"]["stream_documents"] == 4
