"""Calling custom filters: what each says of a batch of documents, and whether it says so again.

A verdict is None for a document that stays, else why it goes: the text that the function returned,
or "" where it returned False.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config.sections import COLUMN_PREFIX
from pipeline.core.errors import FunctionError, escape_text
from pipeline.core.ids import hex_keys
from pipeline.core.plugins import describe_failure
from pipeline.filters.custom_functions import CustomFilter, load_function

Verdict = str | None

ABOUT = ("key", "source", "path", "line", "licence", "meta")
"""What is known of a document besides its text: the columns of a batch and the keys of `meta`."""

LONGEST_REASON = 200
_REPEATED = 16
"""Documents that stay, and as many that go, of which a function is asked again in each task."""


def document_batches(documents: pa.Table, files: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
    """What functions are given of the documents: key, source, path (`input/path`), line (of a file
    of rows: the row, from 0), licence, meta (JSON), typed columns and the text.

    `files`: names of raw shards by `path_id`.
    """
    typed = [name for name in documents.column_names if name.startswith(COLUMN_PREFIX)]
    for batch in documents.to_batches():
        lines, offsets = (batch[name].to_numpy() for name in ("line", "byte_offset"))
        columns = {
            "key": hex_keys(batch["doc_key"]),
            "source": batch["source"],
            "path": pa.array([files[number] for number in batch["path_id"].to_pylist()]),
            "line": pa.array(np.where(lines > 0, lines, offsets).astype(np.int64)),
            **{name: batch[name] for name in ("licence", "meta", *typed, "text")},
        }
        yield pa.RecordBatch.from_pydict(columns)


def judge(own: CustomFilter, batches: Sequence[pa.RecordBatch]) -> list[Verdict]:
    """What a filter says of every document. Raises FunctionError naming the document and the config
    key when it fails, returns something else than it may, or says something else when asked again.
    """
    verdicts = [verdict for batch in batches for verdict in _judge_batch(own, batch)]
    for rows in _samples(verdicts):
        [batch] = pa.Table.from_batches(batches).take(pa.array(rows)).combine_chunks().to_batches()
        for row, verdict in enumerate(_judge_batch(own, batch)):
            if verdict != verdicts[rows[row]]:
                raise _unrepeatable(own, batch, row, verdicts[rows[row]], verdict)
    return verdicts


def _samples(verdicts: Sequence[Verdict]) -> Iterator[list[int]]:
    for goes in (False, True):
        rows = [row for row, verdict in enumerate(verdicts) if (verdict is not None) is goes]
        if rows:
            places = np.linspace(len(rows) - 1, 0, min(len(rows), _REPEATED)).astype(int)
            yield [rows[place] for place in places]


def _judge_batch(own: CustomFilter, batch: pa.RecordBatch) -> list[Verdict]:
    if own.batch:
        return _of_batch(own, batch)
    return [_verdict(own, batch, row, answer) for row, answer in enumerate(_ask(own, batch))]


def _ask(own: CustomFilter, batch: pa.RecordBatch) -> Iterator[Any]:
    """What a function returns for each document."""
    texts, columns = batch["text"], [batch[name].to_pylist() for name in ABOUT]
    for row, about in enumerate(zip(*columns, strict=True)):
        meta = dict(zip(ABOUT, about, strict=True))
        meta["meta"] = json.loads(meta["meta"])  # a value of its own, which the function may change
        yield _call(own, batch, row, texts[row].as_py(), meta)


def call_on_documents(
    own: CustomFilter, batches: Sequence[pa.RecordBatch]
) -> Iterator[tuple[Any, str]]:
    """What a function returns for each document, and where that is, for messages. Raises
    FunctionError when it fails."""
    for batch in batches:
        for row, answer in enumerate(_ask(own, batch)):
            yield answer, _place(batch, row)


def _of_batch(own: CustomFilter, batch: pa.RecordBatch) -> list[Verdict]:
    answers = _call(own, batch, None, batch)
    if isinstance(answers, pa.Array | pa.ChunkedArray):
        answers = answers.to_pylist()
    if isinstance(answers, str | bytes | Mapping) or not hasattr(answers, "__len__"):
        raise _wrong_type(
            own, f"for {describe_rows(batch)}", answers, "an array of bool or of strings"
        )
    if len(answers) != len(batch):
        raise FunctionError(
            f"{_describe_filter(own)} returned {len(answers):,} values for the "
            f"{len(batch):,} documents of {describe_rows(batch)}; expected one for each"
        )
    return [
        None if one is None else _verdict(own, batch, row, one) for row, one in enumerate(answers)
    ]


def _call(own: CustomFilter, batch: pa.RecordBatch, row: int | None, *arguments: Any) -> Any:
    function = load_function(own)
    try:
        return function(*arguments, **json.loads(own.settings))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function may raise anything
        failure = describe_failure(error, own.location.file)
        where = describe_rows(batch) if row is None else _place(batch, row)
    if row is None and len(batch) > 1:
        for one in range(len(batch)):  # which document it is
            _call(own, batch.slice(one, 1), None, batch.slice(one, 1))
    raise FunctionError(f"{_describe_filter(own)} failed on {where}: {failure}")


def _verdict(own: CustomFilter, batch: pa.RecordBatch, row: int, answer: Any) -> Verdict:
    if isinstance(answer, str):
        return escape_text(answer, LONGEST_REASON) or None
    if isinstance(answer, bool | np.bool_):
        return None if answer else ""
    raise _wrong_type(
        own, f"for {_place(batch, row)}", answer, "True, False or a string, the reason"
    )


def _wrong_type(own: CustomFilter, where: str, answer: Any, expected: str) -> FunctionError:
    shown = escape_text(repr(answer), 60)
    return FunctionError(
        f"{_describe_filter(own)} returned {shown} ({type(answer).__name__}) {where}; "
        f"expected {expected}"
    )


def _unrepeatable(
    own: CustomFilter, batch: pa.RecordBatch, row: int, first: Verdict, then: Verdict
) -> FunctionError:
    return FunctionError(
        f"{_describe_filter(own)} is no pure function: of {_place(batch, row)} it said "
        f"{_words(first)}, and {_words(then)} when asked again in another order; it may "
        "depend on nothing but what it is given: no random number, clock, counter or document "
        "from before"
    )


def _words(verdict: Verdict) -> str:
    if verdict is None:
        return "that it stays"
    return f"that it goes ({verdict})" if verdict else "that it goes"


def _describe_filter(own: CustomFilter) -> str:
    return f"{own.location.key}: {own.name} ({own.location.file})"


def _place(batch: pa.RecordBatch, row: int) -> str:
    path, line, key = (batch[name][row].as_py() for name in ("path", "line", "key"))
    return f"{escape_text(path)}:{line} (document {key})"


def describe_rows(batch: pa.RecordBatch) -> str:
    """Where the documents of a batch are: the first and the last."""
    first, last = _place(batch, 0), _place(batch, len(batch) - 1)
    return first if len(batch) == 1 else f"{first} to {last}"
