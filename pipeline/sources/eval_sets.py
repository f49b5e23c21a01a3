"""Evaluation sets: jsonl files of items, whose texts must not stand in training data."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pipeline.core.errors import InputError, escape_text
from pipeline.sources import files, streams
from pipeline.sources.formats import find_format, find_suffix
from pipeline.sources.text import JSONL

ID_FIELDS = ("id", "doc_id", "ind", "idx", "question_id", "qid", "uid")
"""The first of these that a record has names it; else its line number does."""

LARGEST_RECORD = 64 << 20
"""Bytes of one line."""


@dataclass(frozen=True)
class EvalSet:
    """One file of evaluation items: the set's name, its size, hash, and where it is."""

    name: str
    size: int
    hash: str
    location: str


def find_eval_sets(patterns: tuple[str, ...], base: Path) -> tuple[EvalSet, ...]:
    """The jsonl files behind paths (files, directories, globs) relative to `base`, by name.

    A set is named by its path below the directory that all of them share, without the suffix.
    Raises InputError for a path that names nothing, and for two sets of one name.
    """
    inputs, _ = files.find("evaluation sets", patterns, base)
    jsonl = [f for f in inputs if f.format.records is JSONL]
    if not jsonl:
        raise InputError(f"evaluation sets: {base / patterns[0]}: no jsonl file found")
    sets: dict[str, EvalSet] = {}
    for file in jsonl:
        name = file.path[: len(file.path) - len(find_suffix(file.path) or "")]
        if name in sets:
            raise InputError(
                f"evaluation sets: {name} is found twice: as {file.path} and in another format"
            )
        sets[name] = EvalSet(name, file.size, files.hash_input(file.location), file.location)
    return tuple(sets[name] for name in sorted(sets))


def read_eval_set(eval_set: EvalSet) -> Iterator[tuple[int, dict[str, Any]]]:
    """(1-based line, record) of every line of a set but blank ones.

    Raises InputError for damaged or changed files, and naming the line for one that is no object.
    """
    path = Path(eval_set.location)
    stored = find_format(path.name, JSONL.name)
    assert stored is not None
    try:
        reader = files.HashingReader(str(path))
        with contextlib.closing(reader):
            blocks = streams.decompress_blocks(path, reader, stored.compression)
            for number, (_, _, line) in enumerate(streams.split_lines(blocks, LARGEST_RECORD), 1):
                if line is None:
                    raise InputError(
                        f"{path}:{number}: the line is longer than {LARGEST_RECORD:,} bytes"
                    )
                if line.strip():
                    yield number, _record(line.removeprefix(b"\xef\xbb\xbf"), f"{path}:{number}")
            if reader.hash_rest() != eval_set.hash:
                raise InputError(f"{path}: changed while it was read; run the same command again")
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror or error}") from error


def _record(line: bytes, place: str) -> dict[str, Any]:
    try:
        try:
            return msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            return _lenient(line)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{place}: expected a JSON object: {escape_text(str(error))}; found "
            f"{escape_text(line.decode(errors='replace'), 60)}"
        ) from error


def _lenient(line: bytes) -> dict[str, Any]:
    """A line that only Python's json accepts (NaN, Infinity). Raises ValueError."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    json.dumps(value, ensure_ascii=False).encode()
    return value


def item_name(record: Mapping[str, Any], line: int) -> str:
    """What an item is called: its id, or the 1-based line of its file."""
    ids = (record[f] for f in ID_FIELDS if isinstance(record.get(f), int | str))
    return str(next(ids, line))


def item_texts(
    record: Mapping[str, Any], fields: tuple[str, ...] | None, min_words: int
) -> list[tuple[str, str]]:
    """(field, text) of every string of a record, or of those at or below the given (dotted) fields.

    Strings of a list have the field LIST.INDEX; if all of them are shorter than `min_words`, they
    are one text of the field LIST.

    >>> item_texts({"id": 7, "q": "Predators eat", "choices": ["lions", "fish"]}, None, 8)
    [('q', 'Predators eat'), ('choices', 'lions fish')]
    """
    texts = list(_strings(record, "", min_words))
    if fields is None:
        return texts
    return [(f, t) for f, t in texts if any(f == g or f.startswith(f"{g}.") for g in fields)]


def _strings(value: Any, path: str, min_words: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
        return
    if isinstance(value, list):
        short = [s for s in value if isinstance(s, str) and len(s.split()) < min_words]
        if value and len(short) == len(value):
            yield path, " ".join(value)
            return
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _strings(inner, f"{path}.{name}" if path else str(name), min_words)
