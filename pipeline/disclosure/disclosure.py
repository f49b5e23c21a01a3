"""What every document is made of: the facts of a run, what its owner says, which edition, the files
that are handed on, forms of numbered sections, and pages of Markdown.

A field of a form is never blank: what nobody said and no table knows is a TODO. The same form
becomes Markdown and JSON. In Markdown, control, format and other invisible characters are spelled
out; what Markdown or HTML would read as markup is escaped; a line break is a space, so that no text
leaves its table cell or list item.
"""

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash
from jinja2 import Environment

from pipeline.core.errors import IntegrityError, escape_text
from pipeline.core.mirror.fetching import fetch
from pipeline.disclosure.about import About, Answer, find_answer
from pipeline.disclosure.facts import Facts
from pipeline.hdf5.format import LINEAGE_SUFFIX, SHARD_SUFFIX
from pipeline.report.page import report_environment
from pipeline.runs.catalogue import is_data_set

_BLOCK = 1 << 22
_MEDIA = {
    LINEAGE_SUFFIX: "application/x-parquet",
    ".parquet": "application/x-parquet",
    SHARD_SUFFIX: "application/x-hdf5",
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".jsonl.gz": "application/jsonlines",
    ".jsonl.zst": "application/jsonlines",
}
"""HDF5 has no registered media type; parquet is named as Croissant names it."""


@dataclass(frozen=True)
class PublishedFile:
    """A file of the data set: path below the run directory, size in bytes, sha256 in hex."""

    path: str
    size: int
    sha256: str
    media: str


def list_published_files(directory: Path, files: list[dict[str, Any]]) -> tuple[PublishedFile, ...]:
    """The data set among the `files` of manifest.json: packed shards with their lineage, records
    and tables; no texts of documents, evidence or intermediates.

    Every file is read once. Raises IntegrityError for one that is missing or damaged.
    """
    files_found = []
    for file in files:
        path = str(file["path"])
        if is_data_set(path):
            media = next((m for suffix, m in _MEDIA.items() if path.endswith(suffix)), "text/plain")
            sha256 = _compute_sha256(directory / path, file["hash"])
            files_found.append(PublishedFile(path, file["size"], sha256, media))
    return tuple(files_found)


def _compute_sha256(path: Path, expected: str) -> str:
    """sha256 of a file that has the xxh3-128 of the manifest."""
    sha, xxh = hashlib.sha256(), xxhash.xxh3_128()
    try:
        with open(fetch(path), "rb") as file:
            while block := file.read(_BLOCK):
                sha.update(block)
                xxh.update(block)
    except OSError as error:
        raise IntegrityError(f"{path}: cannot read ({error.strerror})") from error
    if xxh.hexdigest() != expected:
        raise IntegrityError(
            f"{path}: damaged: expected hash {expected}, found {xxh.hexdigest()}; "
            "run the command that made it again to rebuild it"
        )
    return sha.hexdigest()


PREVIEW_WORDS = 15
_WORD_CHARACTERS = 30


@dataclass(frozen=True)
class Disclosure:
    """A run to be disclosed. The public edition shows hashes in the place of passages, of titles,
    authors and contacts in registries, and of what opt-out signals name."""

    facts: Facts
    about: About
    public: bool
    files: tuple[PublishedFile, ...] = ()

    @property
    def edition(self) -> str:
        """`public` or `internal`."""
        return "public" if self.public else "internal"

    @property
    def name(self) -> str:
        """Name of the data set, else that of the config."""
        return self.about.name or self.facts.identity.config

    def find_answer(self, key: str) -> Answer:
        """What about.yaml says under a dotted key, else a TODO."""
        return find_answer(self.about, key)

    def hide_if_public(self, text: str) -> str:
        """Text that only the internal edition shows; its hash in the public one."""
        return hash_text(text) if self.public and text else text


def hash_text(text: str) -> str:
    """A name for a text that does not show it.

    >>> hash_text("some text")
    'sha256 b94f6f125c79e3a5'
    """
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def cut_preview(text: str) -> str:
    """The first 15 words of a passage; of scripts without spaces, 30 characters count as a word.

    >>> cut_preview("one two three"), len(cut_preview("word " * 40).split())
    ('one two three', 16)
    """
    words = text.split()
    short_words = [w if len(w) <= _WORD_CHARACTERS else w[:_WORD_CHARACTERS] for w in words]
    cut = len(words) > PREVIEW_WORDS or short_words != words
    return escape_text(" ".join(short_words[:PREVIEW_WORDS]), 480) + (" …" if cut else "")


BASES = {
    "about": "about.yaml",
    "tables": "tables of the run",
    "todo": "to be filled in",
}


@dataclass(frozen=True)
class Field:
    """One question of a form."""

    number: str
    question: str
    answer: Answer


@dataclass(frozen=True)
class Section:
    """Fields under a heading."""

    number: str
    title: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Form:
    """A whole form, with the statements that head it."""

    title: str
    statements: tuple[str, ...]
    sections: tuple[Section, ...]


def make_section(
    disclosure: Disclosure,
    number: str,
    title: str,
    answers: Mapping[str, str | Answer | None],
    marks: str = "123456789",
) -> Section:
    """A section with one field for each question: its answer, or what about.yaml says under a
    dotted key. Fields are numbered by `marks`; those without an answer are left out."""
    answers_given = {
        question: disclosure.find_answer(answer) if isinstance(answer, str) else answer
        for question, answer in answers.items()
        if answer is not None
    }
    fields = zip(marks, answers_given.items(), strict=False)
    return Section(number, title, tuple(Field(f"{number}.{mark}", *pair) for mark, pair in fields))


def form_to_json(form: Form) -> dict[str, Any]:
    """Plain data: sections with fields, each with its basis."""
    return {
        "title": form.title,
        "statements": list(form.statements),
        "sections": [
            {"number": s.number, "title": s.title, "fields": [_field_to_json(f) for f in s.fields]}
            for s in form.sections
        ],
    }


def _field_to_json(field: Field) -> dict[str, Any]:
    answer = field.answer
    value: dict[str, Any] = {
        "number": field.number,
        "question": field.question,
        "answer": answer.text,
        "basis": answer.basis,
    }
    if answer.check:
        value["check"] = answer.check
    if answer.table:
        value["table"] = asdict(answer.table)
    return value


_PACKAGE = "pipeline.disclosure"
_MARKUP = re.compile(r"([\\`*\[\]|~$]|(?<!\w)_|_(?!\w)|^[-+=#](?!\d))")
_NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
_SCHEME = re.compile(r"(?i)\b(ftp|mailto|javascript|data|file):(?=\S)")
_BLANK = re.compile(r"\n{3,}")
_LIMIT = 20_000  # characters of one text


def render_markdown_page(template: str, **values: Any) -> bytes:
    """The page that a template makes of `values`, in UTF-8; `text | md` guards a text from data."""
    text = _make_environment().get_template(template).render(values)
    return _BLANK.sub("\n\n", text).encode()


def escape_markdown(text: str) -> str:
    r"""A text as Markdown that shows it as it is; addresses of the web stay links.

    >>> print(escape_markdown("a|b <script> *x* some_name"))
    a\|b &lt;script&gt; \*x\* some_name
    """
    joined = " ".join(text.split())
    one_line = escape_text(joined, _LIMIT)
    escaped = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    markdown = _NUMBERED.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", escaped))
    return _SCHEME.sub(r"\1&#58;", markdown)


@functools.cache
def _make_environment() -> Environment:
    environment = report_environment(_PACKAGE).overlay(autoescape=False, finalize=None)
    environment.filters["md"] = escape_markdown
    return environment
