"""`prep disclose`: from the tables of a finished run, part by part, and about.yaml to documents in
a directory. Tables of runs made by earlier versions lack columns, which counts as not recorded.

`prep push`: the data set of a finished run to a repository of the Hugging Face Hub: what
`prep disclose` lists as its files, the Croissant description, and the card at last.

Of `prep clean` and `prep dedup` the cleaned records are the data set; otherwise no text is among
the files. Evidence and quarantine never are.
"""

import importlib.metadata
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.core.errors import ConfigError, InputError, IntegrityError, escape_text
from pipeline.core.hashes import hash_bytes
from pipeline.core.hub import CARD, Repository, Upload, read_name, upload_files
from pipeline.core.ledger import ledger_from_dict
from pipeline.core.manifest import StageManifest, fingerprint_of, read_manifest, read_sealed
from pipeline.core.mirror.fetching import fetch
from pipeline.core.storage import canonical_json, publish
from pipeline.core.words import did_you_mean_or_all
from pipeline.disclosure import counts, match_counts
from pipeline.disclosure.about import About, load_about
from pipeline.disclosure.audit import audit_page
from pipeline.disclosure.california import california_disclosure
from pipeline.disclosure.card import dataset_card
from pipeline.disclosure.disclosure import (
    BASES,
    Disclosure,
    Form,
    PublishedFile,
    form_to_json,
    list_published_files,
    render_markdown_page,
)
from pipeline.disclosure.eu_summary import eu_summary
from pipeline.disclosure.facts import Facts, Identity
from pipeline.disclosure.generations import join_facts
from pipeline.disclosure.json_ld import croissant, spdx
from pipeline.runs import layout, parts
from pipeline.runs.catalogue import story_entry
from pipeline.runs.generations import list_generations

_SCREENING = (
    "registry",
    "screen",
    "custom_detectors",
    "overlap",
    "filters",
    "custom_filters",
    "signals",
    "expression",
    "decisions",
    "verdicts",
    "evidence",
)


@dataclass(frozen=True)
class RunManifests:
    """A finished run directory, opened: its sealed manifest and the manifests of its stages."""

    directory: Path
    manifest: Mapping[str, Any]
    stages: Mapping[str, StageManifest]


def read_run_manifests(directory: Path) -> RunManifests:
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
    manifests = {name: read_manifest(directory / "manifests" / f"{name}.json") for name in names}
    return RunManifests(directory, manifest, {n: m for n, m in manifests.items() if m is not None})


def read_disclosure_facts(run: RunManifests) -> Facts:
    """All facts of a run. Raises IntegrityError when a published table is missing or damaged."""
    try:
        ledger = ledger_from_dict(json.loads((run.directory / layout.LEDGER).read_bytes()))
        documents = counts.CountedDocuments(run.directory)
        registry = counts.read_registry(run.directory, run.stages.get("registry"))
        matches = match_counts.read_matches(run.directory, registry.works)
        decisions = counts.count_decisions(documents, matches)
        propagated = sum(decision.propagated for decision in decisions)
        return Facts(
            identity=_identify(run),
            ledger=ledger,
            inputs=counts.count_inputs(run.directory),
            sources=counts.count_sources(documents, ledger, run.directory),
            licences=counts.count_licences(documents),
            removed=counts.count_removed(documents),
            decisions=decisions,
            flows=counts.count_flows(documents),
            evidence=match_counts.count_evidence(matches),
            works=match_counts.count_works(matches, documents, registry.works),
            optouts=match_counts.count_optouts(matches, documents),
            clusters=counts.count_clusters(run.directory, documents, propagated),
            splits=counts.count_splits(run.directory, ledger),
            hosts=counts.count_hosts(documents),
            lists=registry.lists,
            registry=registry.registry,
            events=counts.count_events(run.directory),
            table=parts.pattern(run.directory / layout.DOCUMENTS),
            screened=counts.count_screened(documents),
        )
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise IntegrityError(
            f"{run.directory}: a table of the run is missing or damaged ({error!r}); "
            "`prep verify` says which"
        ) from error


def _identify(run: RunManifests) -> Identity:
    stages = tuple(
        (s["stage"], s["fingerprint"], s["content_hash"]) for s in run.manifest["stages"]
    )
    software = {k: str(v) for m in run.stages.values() for k, v in m.fields["software"].items()}
    settings = tuple(
        (name, key, _shorten(value))
        for name in _SCREENING
        if name in run.stages
        for key, value in (
            ("fingerprint", run.stages[name].fingerprint),
            *sorted(run.stages[name].fields["settings"].items()),
        )
    )
    return Identity(
        config=str(run.manifest["config"]),
        run=fingerprint_of({"stages": run.manifest["stages"]}),
        toolkit=_read_version(),
        software=tuple(sorted(software.items())),
        stages=stages,
        settings=settings,
    )


def _read_version() -> str:
    """The version of this toolkit, as installed."""
    try:
        return importlib.metadata.version("wafermill")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _shorten(value: Any) -> str:
    """A setting in words; a long one by its hash."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 120 else f"xxh3-128 {hash_bytes(text.encode())}"


_TODO = re.compile(r"TODO\(([^:()]{1,200}):")


def _render_form(form: Form) -> bytes:
    return render_markdown_page("form.md.j2", form=form, bases=BASES)


DOCUMENTS: dict[str, dict[str, Callable[[Disclosure], bytes]]] = {
    "audit": {"audit.html": audit_page},
    "card": {"README.md": dataset_card},
    "croissant": {"croissant.json": lambda d: canonical_json(croissant(d))},
    "eu": {
        "eu_training_summary.md": lambda d: _render_form(eu_summary(d)),
        "eu_training_summary.json": lambda d: canonical_json(form_to_json(eu_summary(d))),
    },
    "california": {"california_ab2013.md": lambda d: _render_form(california_disclosure(d))},
    "spdx": {"spdx.json": lambda d: canonical_json(spdx(d))},
}
"""What `--only` names, with the files each makes."""

_NEED_FILES = {"croissant", "spdx"}


@dataclass(frozen=True)
class DisclosureFiles:
    """What was written: edition, (file, bytes) in order, and keys that stand as TODO in it."""

    directory: Path
    edition: str
    files: tuple[tuple[str, int], ...]
    todos: tuple[str, ...]


def write_disclosure(
    directory: Path,
    out: Path,
    about: Path | None = None,
    only: tuple[str, ...] = (),
    *,
    public: bool = True,
) -> DisclosureFiles:
    """Write the documents named in `only` (all without) about the run in `directory` to `out`.

    The same run and about.yaml give the same bytes; every file is published atomically. Raises
    ConfigError, InputError for a directory that is no finished run, IntegrityError for damage.
    """
    names = _choose_documents(only)
    answers = load_about(about)
    if out.resolve().is_relative_to(directory.resolve()):
        raise ConfigError(
            f"--out {out}: is inside the run directory, whose manifest lists every file; choose a "
            "directory outside it"
        )
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
    generations = list_generations(directory)
    runs = [read_run_manifests(generation.directory) for generation in generations]
    places = [generation.place for generation in generations]
    facts = join_facts([read_disclosure_facts(run) for run in runs], places)
    _check_sources(answers, facts, about)
    files = list_data_set(directory) if _NEED_FILES & {*names} else ()
    disclosure = Disclosure(facts, answers, public, files)
    sizes, todos = [], set()
    for name in names:
        for file, make in DOCUMENTS[name].items():
            data = make(disclosure)
            sizes.append((file, publish(out / file, data).size))
            todos |= {escape_text(key) for key in _TODO.findall(data.decode())}
    return DisclosureFiles(out, disclosure.edition, tuple(sizes), tuple(sorted(todos)))


def list_data_set(directory: Path) -> tuple[PublishedFile, ...]:
    """The files of the data set, of all generations; see `list_published_files`."""
    files: list[PublishedFile] = []
    for generation in list_generations(directory):
        manifest = read_run_manifests(generation.directory).manifest
        own = list_published_files(generation.directory, manifest["files"])
        files += [replace(file, path=generation.place + file.path) for file in own]
    return tuple(files)


def _choose_documents(only: tuple[str, ...]) -> tuple[str, ...]:
    """The documents asked for, in the order of DOCUMENTS."""
    for name in only:
        if name not in DOCUMENTS:
            raise ConfigError(
                f"--only {escape_text(name, 60)}: unknown "
                f"document{did_you_mean_or_all(name, [*DOCUMENTS])}"
            )
    return tuple(name for name in DOCUMENTS if not only or name in only)


def _check_sources(answers: About, facts: Facts, path: Path | None) -> None:
    labels = [source.label for source in facts.sources]
    for label in answers.sources:
        if label not in labels:
            raise ConfigError(
                f"{path}: sources: the run has no source label {escape_text(label, 60)!r}"
                f"{did_you_mean_or_all(label, labels)}"
            )


_DOCUMENTS = ("card", "croissant")


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Where to (`hf://datasets/OWNER/NAME`), the branch, whether a new repository is private; what
    only people know (about.yaml)."""

    to: str
    revision: str = "main"
    private: bool = True
    about: Path | None = None


def push_run(
    directory: Path, options: PushOptions, dry_run: bool, say: Callable[[str], None]
) -> list[Upload]:
    """Upload, or with `dry_run` only list, which needs no network. Raises ConfigError for a name
    that is none and for what the Hub refuses, InputError and IntegrityError for a run."""
    repository = Repository(
        kind="dataset",
        name=read_name(options.to, "dataset"),
        revision=options.revision,
        private=options.private,
    )
    with tempfile.TemporaryDirectory() as scratch:
        uploads = list(_list_uploads(directory, options.about, Path(scratch)))
        if not dry_run:
            upload_files(repository, uploads, say)
    return uploads


def _list_uploads(directory: Path, about: Path | None, scratch: Path) -> Iterator[Upload]:
    for file in list_data_set(directory):
        yield Upload(file.path, fetch(directory / file.path), file.size)
    made = write_disclosure(directory, scratch, about, _DOCUMENTS)
    for name, size in sorted(made.files, key=lambda file: file[0] == CARD):
        yield Upload(name, scratch / name, size)
