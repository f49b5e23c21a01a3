"""A run with everything a disclosure can show: evidence of every kind, a registry, an event chain.

The works, people and texts are invented. The tables are those that screening writes, put in the
place of the small run's own.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.hashes import hash_file
from pipeline.core.manifest import read_sealed, write_sealed
from pipeline.disclosure.about import About, load_about
from pipeline.disclosure.disclosure import Disclosure, Form, list_published_files
from pipeline.disclosure.publish import read_disclosure_facts, read_run_manifests
from pipeline.runs.events import append_event
from pipeline.screening.evidence import DECISION_SCHEMA, EVIDENCE_SCHEMA, make_table

TITLE, AUTHOR = "The Lantern of Ostermoor", "Ilse Vandermeer"
PASSAGE = "Under the amber lantern the keeper of Ostermoor counted " + "the quiet winter boats " * 5
OPTED_OUT = "stories.example.org"
REVIEWER = "Rowan Pemberton"
WORKS = ("a1b2c3d4e5f6", "0f1e2d3c4b5a")

ABOUT = """\
name: Invented corpus
version: 1.0.0
description: Words drawn by a hash, for tests.
url: https://example.org/invented
citation: "@misc{invented}"
creators:
  - name: Example Organisation
    url: https://example.org
  - name: Some Person
    kind: person
licence:
  expression: CC-BY-4.0
  link: https://creativecommons.org/licenses/by/4.0/
languages: [en, de]
jurisdiction: law of the place of publication
content_types: invented prose
purposes: to test documents about data
out_of_scope: everything else
collection: drawn by a script of the authors
funding: none
protected_material: all of it is in the public domain
personal_information: none is known
sensitive_information: "no"
aggregate_consumer_information: none
characteristics: none
biases: words are drawn evenly
limitations: it means nothing
social_impact: none is expected
maintenance: kept by the authors, new versions replace old ones
other_sources: none
claims:
  contact: claims@example.org
  procedure: answered within 10 days
provider:
  name: Example Provider GmbH
  contact: training-data@example.org
  representative: not applicable
  representative_contact: not applicable
models:
  names: [Invented-1.0]
  dependencies: none
  market_date: 2026-05-01
summary:
  version: first version
  last_update: 2026-05-02
dates:
  built: 2026-03-01
  published: 2026-04-01
  collected_from: 2025
  collected_to: 2025-12
  first_used: 2026-03-02
crawlers:
  used: false
  names: [none]
  purpose: none
  behaviour: none
  period: none
  content: none
user_data:
  from_model: false
  from_services: false
  description: none
synthetic:
  used: true
  models: a script
  purpose: data that may be published
measures:
  code_of_practice: false
  reservations: captured signals are evaluated
  illegal_content: rules of the policy
"""


def list_todos(form: Form) -> list[str]:
    """What is still to be filled in."""
    answers = (field.answer for section in form.sections for field in section.fields)
    return [answer.text for answer in answers if answer.basis == "todo"]


KINDS = ("public", "licensed", "synthetic", "crawled", "other")


def full_about(labels: list[str], path: Path) -> About:
    """An about.yaml that leaves nothing open, with an entry for every source label."""
    lines = [ABOUT, "sources:\n"]
    for label, kind in zip(labels, KINDS, strict=False):
        lines.append(
            f"  {label}:\n    kind: {kind}\n    name: data set {label}\n"
            f"    link: https://example.org/{label}\n    owner: owner of {label}\n"
            f"    description: invented\n    period: during 2025\n"
        )
    path.write_text("".join(lines))
    return load_about(path)


@dataclass(frozen=True)
class RichRun:
    """A run directory with screening results, and a full about.yaml for it."""

    directory: Path
    about_file: Path

    def disclosure(self, *, public: bool = True, about: About | None = None) -> Disclosure:
        run = read_run_manifests(self.directory)
        said = load_about(self.about_file) if about is None else about
        files = list_published_files(self.directory, run.manifest["files"])
        return Disclosure(read_disclosure_facts(run), said, public, files)


def _evidence(keys: list[bytes]) -> list[tuple[object, ...]]:
    """Rows of evidence about the first documents; without doc_id."""
    measured = json.dumps({"document_fraction": 0.42, "hits": 37, "longest_run_words": 120,
                           "words": 160}, sort_keys=True)  # fmt: skip
    rows: list[tuple[object, ...]] = []

    def add(key: bytes, detector: str, kind: str, target: str, **more: Any) -> None:
        rows.append((
            f"{key.hex()}-s{len(rows)}", None, key, detector, "", kind, target,
            more.get("work_id", ""), more.get("seen", ""), more.get("offset", 0),
            more.get("length", 0), more.get("score"), more.get("attributes", ""),
        ))  # fmt: skip

    for number, key in enumerate(keys[:3]):
        add(key, "text_match", "passage", "registry", work_id=WORKS[0], seen=PASSAGE, offset=100,
            length=900 - number, score=37.0, attributes=measured)  # fmt: skip
    add(keys[3], "title_author", "metadata", "registry", work_id=WORKS[1], seen=f"by {AUTHOR}",
        score=0.97)  # fmt: skip
    for key in keys[4:6]:
        signal = {"signal": "robots.txt", "status": "reserved", "captured_at": "2025-06-01"}
        add(key, "optout", "signal", OPTED_OUT, seen="Disallow: /",
            attributes=json.dumps(signal, sort_keys=True))  # fmt: skip
    review = json.dumps({"by": REVIEWER, "decision": "quarantine"}, sort_keys=True)
    add(keys[0], "review", "current", "", attributes=review)
    add(keys[6], "licence", "statement", "CC-BY-4.0", seen="CC BY 4.0")
    return rows


def _decisions(keys: list[bytes]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for number, key in enumerate(keys[:3]):
        reason = f"{160 - number} words overlap work {WORKS[0]} of the registry"
        taken = keys[0] if number == 2 else None
        rows.append((None, key, "quarantine", "text-of-a-registered-work", reason,
                     [f"{key.hex()}-s{number}"], taken))  # fmt: skip
    rows.append((None, keys[3], "review", "named-like-a-work", f"metadata says by {AUTHOR}",
                 [f"{keys[3].hex()}-s3"], None))  # fmt: skip
    rows.append((None, keys[6], "quarantine", "reviewed-quarantine",
                 f"{REVIEWER} reviewed it", [f"{keys[0].hex()}-s6"], None))  # fmt: skip
    for number, key in enumerate(keys[4:6], 4):
        rows.append((None, key, "drop", "opt-out", "a captured signal reserves rights",
                     [f"{key.hex()}-s{number}"], None))  # fmt: skip
    return rows


def _documents(directory: Path, decisions: list[tuple[object, ...]]) -> None:
    """documents.parquet with these decisions, and a web address for every document."""
    path = directory / "documents.parquet/000000.parquet"
    rows = pq.read_table(path).to_pylist()
    decided = {row[1]: row for row in decisions}
    for number, row in enumerate(rows):
        found = decided.get(row["doc_key"])
        row["meta_url"] = f"https://Site{number % 17}.example.org/page/{number}"
        if found:
            row |= {"decision": found[2], "rule": found[3]}
    schema = pq.read_schema(path).append(pa.field("meta_url", pa.string()))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def _registry(directory: Path) -> None:
    """registry/ as the stage of that name publishes it, in the columns that are read."""
    root = directory / "registry"
    root.mkdir(exist_ok=True)
    lists = {"origins": [{"name": "origins", "version": "1", "families": [{}, {}]}],
             "artefacts": [], "captures": [{}, {}, {}]}  # fmt: skip
    (root / "lists.json").write_text(json.dumps(lists))
    works = pa.Table.from_pylist([
        {"work_id": WORKS[0], "title_raw": TITLE, "authors": [AUTHOR], "status": "asserted"},
        {"work_id": WORKS[1], "title_raw": "Another Title", "authors": [], "status": "licensed"},
        {"work_id": "9" * 12, "title_raw": "Never seen", "authors": [], "status": "asserted"},
    ])  # fmt: skip
    index = works.select(["work_id"]).slice(0, 2)
    stated = {b"fingerprints": json.dumps({"k": 5, "m": 3, "chance": 0.037}).encode()}
    for name, table in (("works", works), ("index.works", index.replace_schema_metadata(stated))):
        with pa.ipc.new_file(str(root / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)


def enrich(directory: Path) -> None:
    """Put screening results into a run directory."""
    documents = pq.read_table(directory / "documents.parquet", columns=["doc_key", "state"])
    keys = [row["doc_key"] for row in documents.to_pylist() if row["state"] == "kept"][:7]
    decisions = _decisions(keys)
    evidence = make_table(_evidence(keys), EVIDENCE_SCHEMA).drop_columns(["doc_id"])
    decided = make_table(decisions, DECISION_SCHEMA).drop_columns(["doc_id"])
    pq.write_table(evidence, directory / "evidence.parquet/000000.parquet")
    pq.write_table(decided, directory / "decisions.parquet/000000.parquet")
    _documents(directory, decisions)
    _registry(directory)
    append_event(directory, "screening", REVIEWER, {"policy": "default"})
    append_event(directory, "review", REVIEWER, {"decision": "quarantine"})

    reseal(directory)


def reseal(directory: Path) -> None:
    """Bring manifest.json up to date with what stands in the directory."""
    manifest = read_sealed(directory / "manifest.json")
    for file in manifest["files"]:
        path = directory / file["path"]
        if path.exists():
            file |= {"size": path.stat().st_size, "hash": hash_file(path)}
    write_sealed(directory / "manifest.json", manifest)


@pytest.fixture(scope="session")
def rich_run(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> RichRun:
    """A copy of the small run with screening results; read only."""
    root = tmp_path_factory.mktemp("rich")
    directory = root / "run"
    shutil.copytree(small_run.directory, directory)
    enrich(directory)
    labels = list(json.loads((directory / "ledger.json").read_bytes())["sources"])
    full_about(labels, root / "about.yaml")
    return RichRun(directory, root / "about.yaml")


@pytest.fixture(scope="session")
def plain_disclosure(small_run: Any) -> Callable[..., Disclosure]:
    """The small run as it is, and nothing said about it."""

    def make(public: bool = True) -> Disclosure:
        run = read_run_manifests(small_run.directory)
        files = list_published_files(small_run.directory, run.manifest["files"])
        return Disclosure(read_disclosure_facts(run), About(), public, files)

    return make
