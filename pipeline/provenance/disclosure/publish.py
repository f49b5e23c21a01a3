"""`prep disclose`: from a finished run and about.yaml to documents in a directory."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.storage import canonical_json, publish
from pipeline.core.words import did_you_mean_or_all
from pipeline.provenance.disclosure.about import About, load_about
from pipeline.provenance.disclosure.audit import audit_page
from pipeline.provenance.disclosure.california import california_disclosure
from pipeline.provenance.disclosure.card import dataset_card
from pipeline.provenance.disclosure.croissant import croissant
from pipeline.provenance.disclosure.disclosure import Disclosure
from pipeline.provenance.disclosure.eu_summary import eu_summary
from pipeline.provenance.disclosure.facts import Facts
from pipeline.provenance.disclosure.files import published_files
from pipeline.provenance.disclosure.forms import BASES, as_json
from pipeline.provenance.disclosure.markdown import markdown_page
from pipeline.provenance.disclosure.read_run import open_run, read_facts
from pipeline.provenance.disclosure.spdx import spdx

__all__ = ["DOCUMENTS", "DisclosureFiles", "disclose"]

_TODO = re.compile(r"TODO\(([^:()]{1,200}):")


def _california(d: Disclosure) -> bytes:
    return markdown_page("form.md.j2", form=california_disclosure(d), bases=BASES)


def _eu(d: Disclosure) -> bytes:
    return markdown_page("form.md.j2", form=eu_summary(d), bases=BASES)


DOCUMENTS: dict[str, dict[str, Callable[[Disclosure], bytes]]] = {
    "audit": {"audit.html": audit_page},
    "card": {"README.md": dataset_card},
    "croissant": {"croissant.json": lambda d: canonical_json(croissant(d))},
    "eu": {
        "eu_training_summary.md": _eu,
        "eu_training_summary.json": lambda d: canonical_json(as_json(eu_summary(d))),
    },
    "california": {"california_ab2013.md": _california},
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


def disclose(
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
    names = _names(only)
    said = load_about(about)
    if out.resolve().is_relative_to(directory.resolve()):
        raise ConfigError(
            f"--out {out}: is inside the run directory, whose manifest lists every file; choose a "
            "directory outside it"
        )
    if not directory.is_dir():
        raise InputError(f"{directory}: no such run directory")
    run = open_run(directory)
    facts = read_facts(run)
    _check_sources(said, facts, about)
    files = published_files(directory, run.manifest["files"]) if _NEED_FILES & {*names} else ()
    disclosure = Disclosure(facts, said, public, files)
    written, todos = [], set()
    for name in names:
        for file, make in DOCUMENTS[name].items():
            data = make(disclosure)
            written.append((file, publish(out / file, data).size))
            todos |= {escape_text(key) for key in _TODO.findall(data.decode())}
    return DisclosureFiles(out, disclosure.edition, tuple(written), tuple(sorted(todos)))


def _names(only: tuple[str, ...]) -> tuple[str, ...]:
    """The documents asked for, in the order of DOCUMENTS."""
    for name in only:
        if name not in DOCUMENTS:
            raise ConfigError(
                f"--only {escape_text(name, 60)}: unknown "
                f"document{did_you_mean_or_all(name, [*DOCUMENTS])}"
            )
    return tuple(name for name in DOCUMENTS if not only or name in only)


def _check_sources(said: About, facts: Facts, path: Path | None) -> None:
    labels = [source.label for source in facts.sources]
    for label in said.sources:
        if label not in labels:
            raise ConfigError(
                f"{path}: sources: the run has no source label {escape_text(label, 60)!r}"
                f"{did_you_mean_or_all(label, labels)}"
            )
