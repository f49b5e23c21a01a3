"""Evaluation sets in, evidence and decisions out: the stages of decontamination run by a Runner."""

import contextlib
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config.prep import DecontaminateConfig
from pipeline.core import ids, zstd
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_file
from pipeline.core.journal import Journal
from pipeline.core.manifest import Shard, StageManifest
from pipeline.engine.executor import LocalExecutor
from pipeline.engine.progress import Progress
from pipeline.engine.runner import Runner
from pipeline.engine.stage import Inputs, Result, Stage, Task, arrow_output
from pipeline.runs import layout
from pipeline.runs.views.documents import (
    CleanOutput,
    DecisionsOutput,
    EvalIndexOutput,
    FindingsOutput,
)
from pipeline.screening.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA
from pipeline.screening.policy.rules import Policy
from pipeline.sources.eval_sets import find_eval_sets, item_texts
from pipeline.stages.decisions import decisions_stage
from pipeline.stages.findings.overlap import eval_index_stage, overlap_stage
from pipeline.stages.findings.screen import evidence_stage

RULES = DecontaminateConfig()
QUESTION = "Which statement best explains why photosynthesis is the foundation of most food webs?"
PASSAGE = " ".join(f"In sentence {k} the passage tells of matter {k * k}." for k in range(12))


@dataclass(frozen=True)
class TextsJob:
    """Texts to publish as one documents shard."""

    index: int
    texts: tuple[str, ...]


def _texts(job: TextsJob, inputs: Inputs) -> Result:
    rows = range(len(job.texts))
    keys = [ids.doc_key("toy", f"{job.index}.jsonl", row) for row in rows]
    table = pa.table(
        {
            "doc_id": pa.array([job.index << 32 | row for row in rows], pa.uint64()),
            "doc_key": pa.array(keys, pa.binary(16)),
            "licence": pa.array(["cc0"] * len(rows), pa.string()),
            "text": pa.array(job.texts, pa.large_string()),
        }
    )
    return Result((arrow_output(f"documents/{job.index:06d}.arrow", table),))


def texts_stage(*shards: tuple[str, ...]) -> Stage:
    jobs = [TextsJob(index, texts) for index, texts in enumerate(shards)]
    return Stage(
        name="clean",
        version=1,
        function=_texts,
        tasks=tuple(Task(f"shard {j.index}", j) for j in jobs),
    )


@dataclass(frozen=True)
class ScreenJob:
    """(doc_id, decision) of some of a shard's documents, as a stage of one's own gives them."""

    index: int
    documents: int
    rows: tuple[tuple[int, str], ...]


def _screen(job: ScreenJob, inputs: Inputs) -> Result:
    rows = [(d, d.to_bytes(16, "big"), decision) for d, decision in job.rows]
    evidence = [
        (f"{d}-0", d, key, "origin", "", "label", "t", "", "t", 0, 0, None, "")
        for d, key, _ in rows
    ]
    decisions = [
        (d, key, decision, "r", "It is so.", [f"{d}-0"], None) for d, key, decision in rows
    ]
    tables = (
        ("evidence", pa.Table.from_pylist(_named(evidence, EVIDENCE_SCHEMA), EVIDENCE_SCHEMA)),
        ("decisions", pa.Table.from_pylist(_named(decisions, DECISION_SCHEMA), DECISION_SCHEMA)),
    )
    return Result(
        tuple(arrow_output(f"screen/{job.index:06d}.{kind}.arrow", t) for kind, t in tables),
        {"documents": job.documents},
    )


def _named(rows: list[tuple[Any, ...]], schema: pa.Schema) -> list[dict[str, Any]]:
    return [dict(zip(schema.names, row, strict=True)) for row in rows]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Stage], StageManifest]:
    """Bring a stage up to date in this test's run directory."""

    def one(stage: Stage) -> StageManifest:
        root = tmp_path / "run"
        runner = Runner(root, LocalExecutor(), Journal(root), Progress(quiet=True))
        manifest = runner.run(stage)
        reused[:] = runner.reused
        return manifest

    reused: list[str] = []
    one.reused = reused  # type: ignore[attr-defined]
    return one


@pytest.fixture
def table(tmp_path: Path) -> Callable[[Shard], list[dict[str, Any]]]:
    """The rows of a published Arrow shard."""
    return lambda shard: Inputs(tmp_path / "run").table(shard).to_pylist()


def write_set(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    if path.suffix == ".zst":
        data = zstd.compress(data)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.zst", "jsonl.gz"])
def test_from_sets_to_decisions(
    suffix: str, tmp_path: Path, run: Callable[[Stage], StageManifest],
    table: Callable[[Shard], list[dict[str, Any]]],
) -> None:  # fmt: skip
    write_set(
        tmp_path / f"evals/science/arc.{suffix}",
        {"doc_id": 17, "question": QUESTION, "choices": ["sun", "soil"], "label": 0},
        {"doc_id": 18, "question": "Predators eat", "choices": ["lions", "grass"]},
        {"question": {"passage": PASSAGE}},
        {"label": 3},
    )
    sets = find_eval_sets(("evals",), tmp_path)
    assert [s.name for s in sets] == ["science/arc"]
    clean = run(texts_stage(
        (f"Ünlike this.\n{QUESTION.upper()}\nThat.", "Nothing of the kind.", f"{PASSAGE}.", ""),
        (),
        ("Nothing.", f"{QUESTION} Again: {QUESTION}"),
    ))  # fmt: skip
    index = run(eval_index_stage(sets, RULES))
    assert index.tasks[0].counters["sets"] == {"science/arc": {"items": 4, "unchecked": 2}}
    overlap = run(overlap_stage(CleanOutput(clean), EvalIndexOutput(index), RULES))
    assert [task.counters["contaminated"] for task in overlap.tasks] == [2, 0, 1]

    items = pq.read_table(tmp_path / "run" / layout.EVAL_ITEMS).to_pylist()
    assert [(i["item"], i["checked"], i["reason"]) for i in items] == [
        ("17", True, ""), ("18", False, "too short"), ("3", True, ""), ("4", False, "no text"),
    ]  # fmt: skip

    first, decisions = (table(shard) for shard in overlap.tasks[0].shards)
    assert [(r["doc_id"], r["target"], r["attributes"], r["score"]) for r in first] == [
        (0, "science/arc:17", '{"field":"question"}', 1.0),
        (2, "science/arc:3", '{"field":"question.passage"}', 1.0),
    ]
    text = f"Ünlike this.\n{QUESTION.upper()}\nThat.".encode()
    found = text[first[0]["byte_offset"] :][: first[0]["byte_length"]].decode()
    assert found == QUESTION.upper().rstrip("?")
    assert {(r["detector"], r["rule"], r["kind"]) for r in first} == {
        ("eval_overlap", "eval-overlap", "item")
    }  # fmt: skip
    assert [(d["doc_id"], d["decision"], d["rule"]) for d in decisions] == [
        (0, "drop", "eval-overlap"), (2, "drop", "eval-overlap"),
    ]  # fmt: skip
    assert [d["evidence"] for d in decisions] == [[r["evidence_id"]] for r in first]

    last, [decision] = (table(shard) for shard in overlap.tasks[2].shards)
    assert [r["byte_offset"] for r in last] == [0, len(f"{QUESTION} Again: ")]
    assert decision["evidence"] == [r["evidence_id"] for r in last]
    assert len(set(decision["evidence"])) == 2


def test_report_only(
    tmp_path: Path, run: Callable[[Stage], StageManifest],
    table: Callable[[Shard], list[dict[str, Any]]],
) -> None:  # fmt: skip
    write_set(tmp_path / "arc.jsonl", {"q": QUESTION})
    rules = RULES.model_copy(update={"action": "report"})
    index = run(eval_index_stage(find_eval_sets(("arc.jsonl",), tmp_path), rules))
    clean = run(texts_stage((QUESTION,)))
    overlap = run(overlap_stage(CleanOutput(clean), EvalIndexOutput(index), rules))
    evidence, decisions = (table(shard) for shard in overlap.shards)
    assert len(evidence) == 1
    assert decisions == []


def test_decisions_take_the_place_of_the_screen_stage(
    tmp_path: Path, run: Callable[[Stage], StageManifest],
    table: Callable[[Shard], list[dict[str, Any]]],
) -> None:  # fmt: skip
    write_set(tmp_path / "arc.jsonl", {"q": QUESTION})
    rules = RULES.model_copy(update={"action": "quarantine"})
    rows = ((0, "review"), (1, "quarantine"), (2, "drop"), (3, "allow"))
    jobs = (ScreenJob(0, 5, rows), ScreenJob(1, 1, ()))
    screen = run(
        Stage(
            name="screen",
            version=1,
            function=_screen,
            tasks=tuple(Task(f"screen {j.index}", j) for j in jobs),
        )
    )
    clean = run(texts_stage((QUESTION, QUESTION, QUESTION, "x", QUESTION), ("y",)))
    index = run(eval_index_stage(find_eval_sets(("*.jsonl",), tmp_path), rules))
    overlap = run(overlap_stage(CleanOutput(clean), EvalIndexOutput(index), rules))
    found = map(FindingsOutput, (screen, overlap))
    decisions = run(decisions_stage(CleanOutput(clean), Policy(version=1, rules=()), None, *found))

    assert [s.path.partition(".")[2] for s in decisions.shards] == [
        "evidence.arrow", "policy.arrow", "decisions.arrow",
    ] * 2  # fmt: skip
    assert [task.counters["documents"] for task in decisions.tasks] == [5, 1]
    evidence, by_policy, decided = (table(shard) for shard in decisions.tasks[0].shards)
    assert by_policy == []
    assert [(d["doc_id"], d["decision"], d["rule"], len(d["evidence"])) for d in decided] == [
        (0, "quarantine", "eval-overlap", 2), (1, "quarantine", "r", 2), (2, "drop", "r", 2),
        (3, "allow", "r", 1), (4, "quarantine", "eval-overlap", 1),
    ]  # fmt: skip
    known = {row["evidence_id"] for row in evidence}
    assert len(known) == len(evidence) == 8
    assert known == {e for d in decided for e in d["evidence"]}
    assert [row["doc_id"] for row in evidence] == sorted(row["doc_id"] for row in evidence)
    assert [row["score"] for row in evidence if row["detector"] == "origin"] == [None] * 4

    run(evidence_stage(DecisionsOutput(decisions)))
    published = pq.read_table(tmp_path / "run/evidence.parquet")
    assert published.schema.names == [n for n in EVIDENCE_SCHEMA.names if n != "doc_id"]
    assert len(published) == 8


def test_what_makes_the_index_again(tmp_path: Path, run: Any) -> None:
    path = write_set(tmp_path / "a/arc.jsonl", {"q": QUESTION})
    clean = run(texts_stage((QUESTION,)))

    def stages(rules: DecontaminateConfig, pattern: str) -> list[str]:
        index = run(eval_index_stage(find_eval_sets((pattern,), tmp_path), rules))
        again = list(run.reused)
        run(overlap_stage(CleanOutput(clean), EvalIndexOutput(index), rules))
        return [*again, *run.reused]

    assert stages(RULES, "a/arc.jsonl") == []
    both = ["eval_index", "overlap"]
    assert stages(RULES, "a/arc.jsonl") == both
    path.rename(tmp_path / "arc.jsonl")
    assert stages(RULES, "arc.jsonl") == both
    assert stages(RULES.model_copy(update={"action": "review"}), "arc.jsonl") == ["eval_index"]
    assert stages(RULES.model_copy(update={"min_overlap": 1}), "arc.jsonl") == []
    assert stages(RULES, "arc.jsonl") == []
    assert stages(RULES.model_copy(update={"n": 10}), "arc.jsonl") == [
        "overlap"
    ]  # of 13 words, a run of 8 either way
    write_set(tmp_path / "arc.jsonl", {"q": QUESTION + " Or so?"})
    assert stages(RULES, "arc.jsonl") == []


def test_item_texts() -> None:
    record = {
        "id": "x", "question": {"stem": "why", "tags": []}, "n": 1.5, "none": None,
        "options": ["one two three four", "five"], "words": ["a", "b"], "mixed": ["a", {"b": "c"}],
    }  # fmt: skip
    assert item_texts(record, None, 3) == [
        ("id", "x"), ("question.stem", "why"), ("options.0", "one two three four"),
        ("options.1", "five"), ("words", "a b"), ("mixed.0", "a"), ("mixed.1.b", "c"),
    ]  # fmt: skip
    assert item_texts(record, ("question", "options.1", "word"), 3) == [
        ("question.stem", "why"), ("options.1", "five"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"q": "fine"}\n[1]\n', r"arc\.jsonl:2: expected a JSON object"),
        (b'\xef\xbb\xbf{"q": 1}\n', r"no record has a string"),
        (b"", r"no record has a string"),
        (b'{"q": "cut off\n', r"arc\.jsonl:1: expected a JSON object"),
        (b'{"q": "\xff"}\n', r"arc\.jsonl:1: expected a JSON object"),
        (b"[" * 100_000 + b"\n", r"arc\.jsonl:1: expected a JSON object"),
        (b'{"q":' * 5000 + b"\n", r"arc\.jsonl:1: expected a JSON object"),
        (b'{"q": "half \\ud83d of a pair"}\n', r"arc\.jsonl:1: .* surrogates not allowed"),
        (b'{"q": NaN}\n[NaN]\n', r"arc\.jsonl:2: expected a JSON object: it is a list"),
        (b"\xff\xfeq\x00", r"arc\.jsonl: UTF-16"),
        (zstd.compress(b"{}\n"), r"arc\.jsonl: the name says plain jsonl but the bytes are zst"),
    ],
)
def test_bad_sets(data: bytes, message: str, tmp_path: Path, run: Any) -> None:
    (tmp_path / "arc.jsonl").write_bytes(data)
    sets = find_eval_sets(("arc.jsonl",), tmp_path)
    with pytest.raises(InputError, match=message):
        run(eval_index_stage(sets, RULES))


def test_deeply_nested_items(tmp_path: Path, run: Any) -> None:
    """Read or refused, wherever Python's limit stands."""
    for depth in range(800, 1100, 20):
        data = b'{"q":' * depth + json.dumps(QUESTION).encode() + b"}" * depth
        (tmp_path / "arc.jsonl").write_bytes(data)
        stage = eval_index_stage(find_eval_sets(("arc.jsonl",), tmp_path), RULES)
        with contextlib.suppress(InputError):
            assert run(stage).tasks[0].counters["parts"] == 1


def test_a_set_that_changes_meanwhile(tmp_path: Path, run: Any) -> None:
    path = write_set(tmp_path / "arc.jsonl", {"q": QUESTION})
    stage = eval_index_stage(find_eval_sets(("arc.jsonl",), tmp_path), RULES)
    write_set(path, {"q": QUESTION}, {"q": QUESTION})
    with pytest.raises(InputError, match="changed while it was read"):
        run(stage)
    path.unlink()
    with pytest.raises(InputError, match="cannot read"):
        run(stage)


def test_sets_that_are_not_there(tmp_path: Path, run: Any) -> None:
    with pytest.raises(InputError, match=r"evaluation sets.*nothing that ends in"):
        find_eval_sets(("none/*.jsonl",), tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="no jsonl file"):
        find_eval_sets(("a.parquet",), tmp_path)
    for directory in "xy":
        write_set(tmp_path / directory / "test.jsonl", {"q": directory})
    for patterns in ((".",), ("x", "y/*.jsonl"), ("x", "y", "x/test.jsonl")):
        assert [s.name for s in find_eval_sets(patterns, tmp_path)] == ["x/test", "y/test"]
    assert [s.name for s in find_eval_sets(("x/test.jsonl",), tmp_path)] == ["test"]
    rules = RULES.model_copy(update={"fields": ("quest",)})
    with pytest.raises(InputError, match=r"no record has the fields quest; see decontaminate"):
        run(eval_index_stage(find_eval_sets(("x",), tmp_path), rules))
    write_set(tmp_path / "x/test.jsonl.gz", {"q": "x"})
    with pytest.raises(InputError, match="x/test is found twice"):
        find_eval_sets(("x", "y"), tmp_path)


@pytest.mark.shared_data
def test_labelled_documents(
    shared_data: Path, run: Any, table: Callable[[Shard], list[dict[str, Any]]]
) -> None:
    """No clean document is found; every item found in a planted one is the planted one or has the
    same text."""
    lines = (shared_data / "eval_sets/contaminated_docs.jsonl").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    sets = find_eval_sets(("eval_sets/*_[0-9]*.jsonl",), shared_data)
    assert len(sets) == 9
    index = run(eval_index_stage(sets, RULES))
    clean = run(texts_stage(tuple(d["text"] for d in documents)))
    evidence, decisions = (
        table(s)
        for s in run(overlap_stage(CleanOutput(clean), EvalIndexOutput(index), RULES)).shards
    )
    planted = {
        row: f"{p['eval_set'].removesuffix('.jsonl')}:{p['item']}"
        for row, document in enumerate(documents)
        if (p := document["meta"]["planted"])
    }
    targets: dict[int, set[str]] = {}
    for row in evidence:
        targets.setdefault(row["doc_id"], set()).add(row["target"])
    assert sum(planted.get(row) in found for row, found in targets.items()) == 42
    assert set(targets) <= set(planted)
    assert len(decisions) == len(targets)
    unchecked = {name: c["unchecked"] for name, c in index.tasks[0].counters["sets"].items()}
    assert sum(unchecked.values()) == 113
    assert hash_file(Path(sets[0].location)) == sets[0].hash
