"""Screening in whole runs: the invented registered work of the demo, reviews, another policy, works
registered later, and screening alone."""

import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import InputError
from pipeline.core.hashes import tree_hash
from pipeline.demo import planted, quickstart
from pipeline.disclosure.publish import write_disclosure
from pipeline.runs import layout
from pipeline.screening.reviews import record_review
from pipeline.stories.rescan import list_matched_works, plan_rescan, rescan_run
from pipeline.stories.selection import demo_registry
from pipeline.stories.verify import verify_run
from pipeline.tokenizers.definition import load_definition, reference_tokenizer

Prep = Callable[..., Any]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The planted records of the demo; registries go to a cache of this module."""
    folder = tmp_path_factory.mktemp("planted")
    file = folder / "planted.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in planted.lines()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart, "user_cache", lambda: folder / "cache")
        yield file


def prepare(raw: Path, out: Path, *overrides: str, workers: int = 0) -> Any:
    changes = (f"inputs.0.path={raw}", "read.max_bad_share=20 %", *overrides)
    return pipeline.run("quickstart", out, workers, overrides=changes)


@pytest.fixture(scope="module")
def run(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the demo's registry; read only."""
    out = tmp_path_factory.mktemp("screened") / "run"
    prepare(raw, out)
    return out


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(run / table).to_pylist()


def document(run: Path, name: str) -> dict[str, Any]:
    """The row of the planted record with this file name."""
    line = next(
        number
        for number, line in enumerate(planted.lines(), 1)
        if f"planted/{name}".encode() in line
    )
    return next(row for row in rows(run, layout.DOCUMENTS) if row["line"] == line)


def tree(directory: Path) -> dict[str, str]:
    """What stands in a run, but journal and rescans."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.relative_to(directory).parts[0] not in ("journal", "rescans")
        and path.name != ".lock"
    }  # fmt: skip


def test_the_demo_work_is_found(run: Path) -> None:
    """A copy without title and author, and an edited passage in another text."""
    copy, minutes = document(run, "sheets.txt"), document(run, "minutes.txt")
    assert (copy["state"], copy["reason"]) == ("quarantined", "registered-text")
    assert (minutes["state"], minutes["reason"]) == ("quarantined", "registered-passage")
    found = {
        row["doc_key"]: row for row in rows(run, layout.EVIDENCE) if row["detector"] == "text_match"
    }
    assert set(found) == {copy["doc_key"], minutes["doc_key"]}, "and nothing else overlaps it"
    whole, passage = (json.loads(found[d["doc_key"]]["attributes"]) for d in (copy, minutes))
    assert whole["document_fraction"] == 1.0 and whole["longest_run_words"] > 600
    assert 0.4 < passage["document_fraction"] < 0.6
    text = dict(planted.work_records())["minutes.txt"].encode()
    span = found[minutes["doc_key"]]
    seen = text[span["byte_offset"] :][: span["byte_length"]].decode()
    assert seen.startswith("On the first Tuesday of October") and "seven" in seen
    report = (run / layout.REPORT).read_text()
    assert "registered-text" in report and "registered-passage" in report
    verify_run(run)


def test_the_public_audit_names_no_work(run: Path, tmp_path: Path) -> None:
    title = "ran on Tuesdays"
    write_disclosure(run, tmp_path / "public", only=("audit",))
    assert title not in (tmp_path / "public/audit.html").read_text()
    write_disclosure(run, tmp_path / "internal", only=("audit",), public=False)
    assert title in (tmp_path / "internal/audit.html").read_text()


def test_a_review_counts_and_nothing_is_detected_again(
    raw: Path, run: Path, tmp_path: Path
) -> None:
    again = Path(shutil.copytree(run, tmp_path / "run"))
    minutes = document(again, "minutes.txt")["doc_key"].hex()
    record_review(again, minutes, "allow", "A. Reader", "quoted with permission")
    manifest = prepare(raw, again)
    assert {"screen", "registry", "signatures"} <= set(manifest.reused)
    row = document(again, "minutes.txt")
    assert (row["state"], row["decision"], row["rule"]) == ("kept", "allow", "reviewed-allow")
    [review] = [e for e in rows(again, layout.EVIDENCE) if e["detector"] == "review"]
    assert json.loads(review["attributes"])["by"] == "A. Reader"
    verify_run(again)
    assert len(prepare(raw, again).reused) == len(prepare(raw, again).stages)


def test_what_is_redacted_is_not_tokenized(raw: Path, run: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(run, tmp_path / "run"))
    row = document(again, "minutes.txt")
    [span] = [e for e in rows(again, layout.EVIDENCE) if e["doc_key"] == row["doc_key"]]
    start, end = span["byte_offset"], span["byte_offset"] + span["byte_length"]
    spans = [(start, end), (start + 50, end + 1)]  # they overlap
    record_review(again, row["doc_key"].hex(), "redact", "A. Reader", "one story", spans)
    prepare(raw, again)
    redacted = document(again, "minutes.txt")
    assert (redacted["state"], redacted["decision"]) == ("kept", "redact")
    text = dict(planted.work_records())["minutes.txt"].encode()
    left = (text[:start] + text[end + 1 :]).decode()
    reference = reference_tokenizer(load_definition("gpt2"))
    assert redacted["tokens"] == len(reference.encode(left).ids) + 1
    cuts = rows(again, layout.CUTS)
    assert [(c["byte_start"], c["byte_end"], c["digest"], c["first"]) for c in cuts] == [
        (start, end + 1, None, None)
    ]
    verify_run(again, lineage=100)


def test_evidence_and_decisions_for_any_number_of_workers(
    raw: Path, tmp_path: Path, two_workers: int
) -> None:
    small = "read.task_bytes=4096"
    prepare(raw, tmp_path / "none", small)
    prepare(raw, tmp_path / "two", small, workers=two_workers)
    assert tree_hash(tmp_path / "none") == tree_hash(tmp_path / "two")
    assert len(list((tmp_path / "none/documents").iterdir())) > 2


def test_another_policy_needs_no_detection(
    raw: Path, run: Path, tmp_path: Path, prep: Prep
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\n"
        "rules:\n"
        "  - id: any-overlap\n"
        "    when: {text_match.work_id: any}\n"
        "    decision: review\n"
        '    reason: "{text_match.words} words of {work.title}"\n'
    )
    compared = prep("screen", run, "--policy", policy, "--json")
    difference = json.loads(compared.out)
    changed = {(c["old_rule"], c["new_decision"]) for c in difference["changes"]}
    assert changed >= {("registered-text", "review"), ("origin-listed", "allow")}
    again = Path(shutil.copytree(run, tmp_path / "run"))
    manifest = prepare(raw, again, f"screen.policy={policy}")
    assert "screen" in manifest.reused and "decisions" not in manifest.reused
    row = document(again, "sheets.txt")
    assert (row["state"], row["decision"], row["rule"]) == ("kept", "review", "any-overlap")
    [decision] = [d for d in rows(again, layout.DECISIONS) if d["doc_key"] == row["doc_key"]]
    assert decision["reason"] == "682 words of The ferry that ran on Tuesdays: a story"


def test_works_that_are_registered_later(
    raw: Path, tmp_path: Path, prep: Prep, two_workers: int
) -> None:
    out = tmp_path / "run"
    prepare(raw, out, "screen.registry=[]")
    assert document(out, "sheets.txt")["state"] == "kept"
    before = tree(out)
    estimate = prep("rescan", out, "--registry", demo_registry(), "--estimate", "--json")
    assert json.loads(estimate.out)["works"] == 1 and not (out / layout.RESCANS).exists()
    asked = plan_rescan(out, [demo_registry()])
    first = rescan_run(asked, 0)
    [work] = list_matched_works(asked)
    assert (work.documents, work.kept, work.detectors) == (2, 2, ("text_match",))
    tokens = [document(out, name)["tokens"] for name in ("sheets.txt", "minutes.txt")]
    assert work.tokens == sum(tokens)
    decisions = rows(asked.out, layout.DECISIONS)
    assert {d["rule"] for d in decisions} == {"registered-text", "registered-passage"}
    assert tree(out) == before, "the run itself is not touched"
    verify_run(out)
    assert len(rescan_run(asked, 0).reused) == len(first.stages)
    options = ("--name", "other", "--workers", two_workers)
    shown = prep("rescan", out, "--registry", demo_registry(), *options)
    assert shown.code == 0 and "1 work matched" in shown.out
    assert re.search(r"about [\d.]+s of one core", shown.out)
    files = ("evidence.parquet/000000.parquet", "decisions.parquet/000000.parquet")
    for name in files:
        assert (asked.out / name).read_bytes() == (out / "rescans/other" / name).read_bytes()


def test_a_rescan_needs_the_text(run: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(again / "documents")
    with pytest.raises(InputError, match=r"documents/000000\.arrow is missing"):
        plan_rescan(again, [demo_registry()])


def test_screening_alone(raw: Path, run: Path, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "screened"
    arguments = ("screen", raw, "--out", out, "--registry", demo_registry(),
                 "--set", "read.max_bad_share=20 %", "--set", "dedup.max_source_share=95 %",
                 "--json")  # fmt: skip
    ended = prep(*arguments)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    decided = {row["rule"]: row["count"] for row in found["decisions"] if row["rule"]}
    assert decided == {"origin-listed": 1, "marker-download": 1, "registered-text": 1,
                       "registered-passage": 1}  # fmt: skip
    assert not (out / "tokens").exists() and not (out / "hdf5").exists()
    ends = Counter((row["state"], row["rule"]) for row in rows(out, layout.DOCUMENTS))
    assert ends == Counter((row["state"], row["rule"]) for row in rows(run, layout.DOCUMENTS))
    again = json.loads(prep(*arguments).out)
    assert {"screen", "verdicts", "account"} <= set(again["reused"])
    verify_run(out)
    nothing = prep("screen", raw)
    assert nothing.code == 2 and "--out" in nothing.err
