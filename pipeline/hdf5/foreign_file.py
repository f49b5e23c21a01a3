"""Examine one HDF5 file that nobody vouches for. Runs in a child process with limits."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from dedup.arrays import Array
from pipeline.core.errors import PrepError
from pipeline.core.words import pluralise
from pipeline.hdf5.findings import FileFinding
from pipeline.hdf5.foreign_lineage import LineageSpans, lineage_path, read_spans
from pipeline.hdf5.foreign_rows import Block, Expectations, RowChecks, RowFacts
from pipeline.hdf5.format import COUNT_ATTRIBUTE, SAMPLE, VSL
from pipeline.hdf5.shard_file import ShardFile, open_hdf5

_BLOCK_TOKENS = 1 << 19
_REFUSED = ("Link", "keeps its data", "plugin")

Groups = tuple[tuple[str, tuple[str, ...]], ...]
"""(name of a dataset, features on its axis 1); no features: named by their number."""


@dataclass
class FileReport:
    """What one file holds and what is wrong with it; `shapes` are those of its datasets."""

    name: str
    shapes: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    facts: RowFacts = field(default_factory=RowFacts)
    findings: list[FileFinding] = field(default_factory=list)
    spans: LineageSpans | None = None


def examine(path: Path, groups: Groups, expectations: Expectations) -> FileReport:
    """Read the whole file; findings instead of errors."""
    report = FileReport(path.name)
    try:
        files = [ShardFile(path, dataset) for dataset, _ in groups]
        for file in files:
            report.shapes[file.name] = file.dtype.str, file.shape
        report.findings += _count(path, files)
        _examine_data(path, files, groups, expectations, report)
    except PrepError as error:
        message = str(error).removeprefix(f"{path}: ")
        code = "refused" if any(word in message for word in _REFUSED) else "unreadable"
        report.findings.append(FileFinding(path.name, code, message))
    return report


def _count(path: Path, files: list[ShardFile]) -> Iterator[FileFinding]:
    rows = {file.rows for file in files}
    if len(rows) > 1:
        yield FileFinding(
            path.name, "layout", f"its datasets differ in their number of rows: {sorted(rows)}"
        )
    with open_hdf5(path) as file:
        try:
            stated = file.attrs.get(COUNT_ATTRIBUTE)
            count = None if stated is None else int(stated)
        except (TypeError, ValueError, OSError):
            yield FileFinding(path.name, "count", f"attribute {COUNT_ATTRIBUTE} is not a number")
            return
    if count is None:
        yield FileFinding(path.name, "count", f"attribute {COUNT_ATTRIBUTE} is missing")
    elif count not in rows:
        what = (
            f"attribute {COUNT_ATTRIBUTE} is {count:,}, but the file holds "
            f"{pluralise(min(rows), 'row')}"
        )
        yield FileFinding(path.name, "count", what)


def _examine_data(
    path: Path, files: list[ShardFile], groups: Groups, expectations: Expectations,
    report: FileReport,
) -> None:  # fmt: skip
    first = files[0]
    if len(first.shape) == 1 and first.dtype.kind == "u":
        return _examine_corpus(path, first, expectations, report)
    if problem := _layout_problem(files):
        report.findings.append(FileFinding(path.name, "layout", problem))
        return None
    names = [
        features or _default_features(file.shape[1])
        for file, (_, features) in zip(files, groups, strict=True)
    ]
    for file, features in zip(files, names, strict=True):
        if len(features) != file.shape[1]:
            what = f"{file.shape[1]} features in {file.name!r}, but data_params.json names "
            what += f"{len(features)}" if features else "none"
            report.findings.append(FileFinding(path.name, "params", what))
            return None
    checks = RowChecks(path.name, expectations)
    inputs: list[Array] = []
    for block in _blocks(files, names):
        if "input_ids" not in block:
            return None
        checks.add(block)
        mask = block.get("attention_mask")
        inputs.append(np.zeros(0) if mask is None else (mask == 1).sum(axis=1))
    report.facts = checks.facts
    report.findings += checks.findings()
    _examine_lineage(path, np.concatenate([np.zeros(0), *inputs]), report)
    return None


def _layout_problem(files: list[ShardFile]) -> str:
    for file in files:
        if len(file.shape) != 3 or file.dtype.kind not in "iu":
            return f"{file.name!r} is {file.dtype} {file.shape}, expected int32 (N, 3 or 5, MSL)"
        if file.dtype != np.dtype("<i4"):
            return f"{file.name!r} holds {file.dtype}, expected int32"
    return ""


def _default_features(channels: int) -> tuple[str, ...]:
    """What loaders take when nobody names the features."""
    return next((x.features for x in (SAMPLE, VSL) if x.channels == channels), ())


def _blocks(files: list[ShardFile], names: list[tuple[str, ...]]) -> Iterator[Block]:
    rows = min(file.rows for file in files)
    step = max(1, _BLOCK_TOKENS // max(1, files[0].shape[2]))
    for start in range(0, rows, step):
        block: dict[str, Array] = {}
        for file, features in zip(files, names, strict=True):
            values = file.read(start, min(rows, start + step))
            block |= {name: values[:, channel] for channel, name in enumerate(features)}
        yield block


def _examine_corpus(
    path: Path, file: ShardFile, expectations: Expectations, report: FileReport
) -> None:
    size, eos = expectations.vocab_size, expectations.eos_id
    digest = xxhash.xxh3_64()
    for start, tokens in file.blocks(_BLOCK_TOKENS):
        digest.update(tokens.tobytes())
        report.facts.tokens += len(tokens)
        if eos is not None:
            report.facts.eos_inside += int((tokens == eos).sum())
        if size is not None and (wrong := tokens >= size).any():
            what = f"tokens outside the vocabulary of {size:,}"
            place = start + int(np.flatnonzero(wrong)[0])
            report.findings.append(FileFinding(path.name, "ids", what, place, int(wrong.sum())))
            break
    else:
        report.facts.hashes += digest.digest() if report.facts.tokens else b""
    _examine_lineage(path, report.facts.tokens, report)


def _examine_lineage(path: Path, input_tokens: Array | int, report: FileReport) -> None:
    if not lineage_path(path).is_file():
        return
    try:
        report.spans, findings = read_spans(path, input_tokens)
        report.findings += findings
    except (OSError, ValueError, KeyError, IndexError) as error:
        what = f"{lineage_path(path).name} cannot be read: {error}"
        report.findings.append(FileFinding(path.name, "lineage", what.splitlines()[0]))
