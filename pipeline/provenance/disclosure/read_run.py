"""Reading a finished run: its tables once, as `Facts`.

Tables of runs made by earlier versions lack columns; what they lack counts as not recorded.
"""

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline import layout
from pipeline.catalogue import story_entry
from pipeline.core.errors import InputError, IntegrityError
from pipeline.core.ledger import ledger_from_dict
from pipeline.core.manifest import StageManifest, fingerprint_of, read_manifest, read_sealed
from pipeline.core.storage import hash_bytes
from pipeline.provenance.disclosure import document_counts, match_counts, run_counts
from pipeline.provenance.disclosure.facts import Facts, Identity

_SCREENING = (
    "registry", "screen", "overlap", "filters", "custom_filters", "decisions", "verdicts",
    "evidence",
)  # fmt: skip
_LOOKS = ("filters", "custom_filters", "overlap", "lines")


@dataclass(frozen=True)
class FinishedRun:
    """A finished run directory, opened: its sealed manifest and the manifests of its stages."""

    directory: Path
    manifest: Mapping[str, Any]
    stages: Mapping[str, StageManifest]


def open_run(directory: Path) -> FinishedRun:
    """Open a finished run. Raises InputError for another directory, IntegrityError for damage."""
    if not (directory / layout.MANIFEST).is_file():
        raise InputError(
            f"{directory}: no {layout.MANIFEST}: not a finished run; the command that began it "
            "finishes it"
        )
    manifest = read_sealed(directory / layout.MANIFEST)
    story = str(manifest.get("story", "prepare"))
    if not story_entry(story).is_described:
        raise InputError(f"{directory}: made by `prep {story}`; expected a run of `prep run`")
    names = [stage["stage"] for stage in manifest["stages"]]
    found = {name: read_manifest(directory / "manifests" / f"{name}.json") for name in names}
    return FinishedRun(directory, manifest, {n: m for n, m in found.items() if m is not None})


def read_facts(run: FinishedRun) -> Facts:
    """All facts of a run. Raises IntegrityError when a published table is missing or damaged."""
    try:
        ledger = ledger_from_dict(json.loads((run.directory / layout.LEDGER).read_bytes()))
        documents = document_counts.read_documents(run.directory)
        registry = run_counts.read_registry(run.directory, run.stages.get("registry"))
        matches = match_counts.read_matches(run.directory, registry.works)
        return Facts(
            identity=_identity(run),
            ledger=ledger,
            inputs=run_counts.inputs_of(run.directory),
            sources=document_counts.sources_of(documents, ledger, run.directory),
            licences=document_counts.licences_of(documents),
            removed=document_counts.removed_of(documents),
            decisions=document_counts.decisions_of(documents, matches),
            flows=document_counts.flows_of(documents),
            evidence=match_counts.evidence_of(matches),
            works=match_counts.works_of(matches, documents, registry.works),
            optouts=match_counts.optouts_of(matches, documents),
            clusters=document_counts.clusters_of(run.directory, documents, matches.decisions),
            splits=run_counts.splits_of(run.directory, ledger),
            hosts=document_counts.hosts_of(documents),
            lists=registry.lists,
            registry=registry.facts,
            events=run_counts.events_of(run.directory),
            screened=document_counts.screened_of(documents),
            looked_at=tuple(name for name in _LOOKS if name in run.stages),
        )
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{run.directory}: a table of the run is missing or damaged ({error!r}); "
            "`prep verify` says which"
        ) from error


def _identity(run: FinishedRun) -> Identity:
    stages = tuple(
        (s["stage"], s["fingerprint"], s["content_hash"]) for s in run.manifest["stages"]
    )
    software = {k: str(v) for m in run.stages.values() for k, v in m.fields["software"].items()}
    settings = tuple(
        (name, key, _short(value))
        for name in _SCREENING
        if name in run.stages
        for key, value in (
            ("fingerprint", run.stages[name].fingerprint),
            *sorted(run.stages[name].fields["settings"].items()),
        )
    )
    return Identity(
        str(run.manifest["config"]), str(run.manifest.get("story", "prepare")),
        fingerprint_of({"stages": run.manifest["stages"]}), _toolkit(),
        tuple(sorted(software.items())), stages, settings,
    )  # fmt: skip


def _toolkit() -> str:
    """The version of this toolkit, as installed."""
    try:
        return importlib.metadata.version("wafermill")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _short(value: Any) -> str:
    """A setting in words; a long one by its hash."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 120 else f"xxh3-128 {hash_bytes(text.encode())}"
