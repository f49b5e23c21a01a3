"""How well, and how fast, are works found by title and author?

    python -m benchmarks.provenance.titles [--seed 1] [--json FILE]

Quality: 200 documents named after the two works of Exhibit A in file names, metadata and first
lines, among 10,000 named after works of no registry, against registries of 2 and of 10,002 works.
A document counts as found when a finding names the right work; a finding on any other pair of
document and work is wrong. Cost: the same documents against a registry of 200,000 works, and as
many documents that name nothing.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.provenance.made_names import Named, Names, batch, decoys, registry, variants
from pipeline.screening.detectors.title_index import build_title_index
from pipeline.screening.detectors.titles import detect_titles


@dataclass(frozen=True)
class Quality:
    """Documents found and wrong findings, for findings of one kind or of any."""

    works: int
    kind: str
    found: int
    of: int
    wrong: int

    @property
    def recall(self) -> float:
        return self.found / self.of

    @property
    def precision(self) -> float:
        return self.found / (self.found + self.wrong) if self.found + self.wrong else 1.0


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds for a document that names something, and for one that does not."""

    works: int
    build_seconds: float
    named_ms: float
    nameless_ms: float


def quality(seed: int, works: int, named: int = 200, others: int = 10_000) -> list[Quality]:
    """Recall and precision for findings of kind title_author, and for all."""
    names = Names(seed)
    index = build_title_index(registry(names, works))
    documents = variants(names, named) + decoys(names, others)
    findings = detect_titles(batch(documents), index)
    return [_quality(works, kind, documents, findings) for kind in ("title_author", "any")]


def _quality(works: int, kind: str, documents: list[Named], findings: pa.Table) -> Quality:
    columns = (findings[name].to_pylist() for name in ("row", "kind", "work_id"))
    pairs = {(row, work) for row, of_kind, work in zip(*columns, strict=True)
             if kind in (of_kind, "any")}  # fmt: skip
    right = {(row, d.work_id) for row, d in enumerate(documents) if d.work_id}
    return Quality(works, kind, len(pairs & right), len(right), len(pairs - right))


def cost(seed: int, works: int, documents: int = 10_000) -> Cost:
    """CPU time against a registry of `works`."""
    names = Names(seed)
    table = registry(names, works)
    started = time.process_time()
    index = build_title_index(table)
    build = time.process_time() - started
    named = batch(decoys(names, documents))
    text = "Nothing in here names a work. " * 40
    nameless = batch([Named({"set": "web"}, text, "")] * documents)
    detect_titles(named.slice(0, 10), index)
    return Cost(works, build, _milliseconds(named, index), _milliseconds(nameless, index))


def _milliseconds(table: pa.Table, index: object) -> float:
    started = time.process_time()
    detect_titles(table, index)
    return (time.process_time() - started) * 1e3 / len(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = [row for works in (2, 10_002) for row in quality(options.seed, works)]
    for q in results:
        print(f"{q.works:>7,} works  {q.kind:<12}  recall {q.recall:.3f} ({q.found}/{q.of})  "
              f"precision {q.precision:.3f} ({q.wrong} wrong)")  # fmt: skip
    costs = [cost(options.seed, works) for works in (10_002, 200_000)]
    for c in costs:
        print(f"{c.works:>7,} works  {c.named_ms:.3f} ms per named document, {c.nameless_ms:.4f} "
              f"per one without a name; index built in {c.build_seconds:.1f} s")  # fmt: skip
    if options.json:
        rows = {"quality": [asdict(q) for q in results], "cost": [asdict(c) for c in costs]}
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
