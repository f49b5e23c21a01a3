"""Filters in a preparation: reasons in ledger, report, tables, `inspect` and `explain`; what runs
again when rules change."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.filters.rules import RULES
from pipeline.stories.verify import verify_run

Prep = Callable[..., Any]


def overrides(root: Path) -> tuple[str, ...]:
    """With the words of bad.txt in `root`."""
    bad = f"bad_words: {root / 'bad.txt'}"
    return (
        "filters.gopher={min_words: 100, stop_words: [river, stone, ocean, paper, silver]}",
        "filters.gopher_repetition=true",
        f"filters.c4={{curly_bracket: true, min_sentences: 0, min_terminal_lines: 0, {bad}}}",
    )


@pytest.fixture(scope="module")
def filtered(make_corpus: Callable[..., Any], write_prose: Callable[..., str],
             tmp_path_factory: pytest.TempPathFactory) -> Path:  # fmt: skip
    """A run of the corpus and one more shard with filters; read only."""
    corpus = make_corpus(tmp_path_factory.mktemp("filtered") / "corpus")
    (corpus.root / "bad.txt").write_text("forbidden thing\n")
    good = write_prose(70_000, 150)
    records = [
        ("curly", good + " {"),
        ("bad", write_prose(70_001, 150) + " A Forbidden Thing."),
        ("marker", "\n".join([good.split("\n")[0]] * 12) + "\nDownloaded from z-lib.org"),
        ("copy of curly", good),
    ]
    lines = [json.dumps({"text": text, "meta": {"url": name}}) + "\n" for name, text in records]
    (corpus.root / "raw/web/z.jsonl").write_text("".join(lines))
    out = corpus.root / "run"
    pipeline.run(corpus.config, out, 0, overrides=overrides(corpus.root))
    return out


def rows(run: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(run / name).to_pylist()
    return found


def of_z(run: Path) -> list[dict[str, Any]]:
    """The documents of the shard with a document for each end."""
    path = next(s["path_id"] for s in rows(run, "sources.parquet") if s["path"] == "z.jsonl")
    return [row for row in rows(run, "documents.parquet") if row["path_id"] == path]


def test_ends(filtered: Path) -> None:
    curly, bad, marker, copy = of_z(filtered)
    assert (curly["state"], curly["reason"]) == ("dropped", "c4_curly_bracket")
    assert (bad["state"], bad["reason"]) == ("dropped", "c4_bad_words")
    assert marker["state"] == "dropped"
    assert marker["reason"].startswith(("gopher_", "repetition_"))
    assert copy["state"] == "kept", "a clean sibling survives a document that a filter drops"
    assert {row["decision"] for row in (curly, bad, marker)} == {"drop"}


def test_evidence_and_decisions(filtered: Path) -> None:
    _, bad, marker, _ = of_z(filtered)
    evidence = rows(filtered, "evidence.parquet")
    decisions = {row["doc_key"]: row for row in rows(filtered, "decisions.parquet")}
    [word] = [e for e in evidence if e["rule"] == "c4_bad_words"]
    assert (word["doc_key"], word["target"], word["attributes"]) == (
        bad["doc_key"], "forbidden thing", "",
    )  # fmt: skip
    here = [e for e in evidence if e["doc_key"] == marker["doc_key"]]
    failed = [e for e in here if e["rule"] in RULES]
    assert [e["rule"] for e in failed] == sorted((e["rule"] for e in failed), key=list(RULES).index)
    measured = [json.loads(e["attributes"]) for e in failed if e["rule"].startswith("repetition")]
    assert measured and all(m["value"] > m["limit"] for m in measured)
    decided = decisions[marker["doc_key"]]
    assert decided["rule"] == failed[0]["rule"]
    assert decided["reason"] == RULES[decided["rule"]]
    assert set(decided["evidence"]) == {e["evidence_id"] for e in here}
    assert len(here) == len(failed) + 1, "the marker of the screening is evidence too"
    assert len({e["evidence_id"] for e in evidence}) == len(evidence)


def test_the_books_balance(filtered: Path) -> None:
    verify_run(filtered)
    ledger = json.loads((filtered / "ledger.json").read_bytes())
    dropped: Counter[str] = Counter()
    for source in ledger["sources"].values():
        dropped.update({reason: t["documents"] for reason, t in source["dropped"].items()})
    documents = rows(filtered, "documents.parquet")
    assert dropped == Counter(row["reason"] for row in documents if row["state"] == "dropped")
    assert dropped["gopher_word_count"] > 10
    report = (filtered / "report.html").read_text()
    for reason in dropped:
        assert reason in report


def test_listed_and_explained(filtered: Path, prep: Prep) -> None:
    ended = prep("inspect", filtered, "--dropped", "gopher_word_count", "--top", 2, "--json")
    found = json.loads(ended.out)
    words = [row for row in rows(filtered, "documents.parquet")
             if row["reason"] == "gopher_word_count"]  # fmt: skip
    assert found["total"] == len(words) == sum(found["by_source"].values())
    assert found["failed"] >= found["total"]
    assert [r["place"]["key"] for r in found["records"]] == [r["doc_key"].hex() for r in words[:2]]
    evidence = found["records"][0]["evidence"][0]
    assert evidence["rule"] == "gopher_word_count"
    value, limit = (evidence["attributes"][name] for name in ("value", "limit"))
    assert value < limit == 100
    shown = prep("inspect", filtered, "--dropped", "too_short")
    assert shown.code == 0
    assert "too short" in shown.out
    wrong = prep("inspect", filtered, "--dropped", "c4_lorem")
    assert wrong.code == 3
    assert "gopher_word_count (" in wrong.err
    explained = prep("explain", filtered, words[0]["doc_key"].hex())
    assert "dropped (gopher_word_count)" in explained.out
    assert f"(limit 100, value {value:.4g})" in explained.out


def test_one_source_only(filtered: Path, prep: Prep) -> None:
    arguments = ("inspect", filtered, "--dropped", "gopher_word_count", "--source", "Wiki")
    found = json.loads(prep(*arguments, "--json").out)
    assert list(found["by_source"]) == ["Wiki"]


def test_changed_rules(filtered: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(filtered, other)
    config, mine = filtered.parent / "tiny.yaml", overrides(filtered.parent)
    again = pipeline.run(config, other, 0, overrides=mine)
    assert len(again.reused) == len(again.stages)
    changed = pipeline.run(config, other, 0, overrides=(*mine, "filters.action=report"))
    assert {"clean", "screen", "bands"} <= set(changed.reused)
    assert "filters" not in changed.reused
    assert rows(other, "evidence.parquet") == rows(filtered, "evidence.parquet")
    assert not {row["reason"] for row in rows(other, "documents.parquet")} & set(RULES)
