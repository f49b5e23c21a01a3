"""Examine HDF5 files that nobody vouches for, one by one.

The child process that opens foreign files: one request on stdin, lines of JSON on stdout.

HDF5 is a large C library with a record of memory errors, so files that nobody vouches for are
parsed where a crash, a bomb or an endless loop ends this process alone. It may not grow beyond its
memory limit, write files or dump core. Run by `pipeline.hdf5.foreign.check`; not a command of its
own.
"""

import json
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from dedup.arrays import Array
from pipeline.core.errors import PrepError
from pipeline.core.words import pluralise
from pipeline.hdf5.foreign.rows import (
    Block,
    Expectations,
    FileFinding,
    LineageSpans,
    RowChecks,
    RowFacts,
    find_lost_or_repeated,
    foreign_lineage_path,
    read_spans,
)
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
    path: Path,
    files: list[ShardFile],
    groups: Groups,
    expectations: Expectations,
    report: FileReport,
) -> None:
    first = files[0]
    if len(first.shape) == 1 and first.dtype.kind == "u":
        return _examine_corpus(path, first, expectations, report)
    if problem := _layout_problem(files):
        report.findings.append(FileFinding(path.name, "layout", problem))
        return None
    names = [
        features or next((x.features for x in (SAMPLE, VSL) if x.channels == file.shape[1]), ())
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
    size, eos, bos = expectations.vocab_size, expectations.eos_id, expectations.bos_id
    digest, ended = xxhash.xxh3_64(), False
    for start, tokens in file.blocks(_BLOCK_TOKENS):
        digest.update(tokens.tobytes())
        report.facts.tokens += len(tokens)
        if eos is not None:
            is_eos = tokens == eos
            report.facts.eos_inside += int(is_eos.sum())
            if bos is not None:
                begins = np.r_[ended, is_eos[:-1]]
                report.facts.after_eos += int(begins.sum())
                report.facts.bos_after_eos += int((tokens[begins] == bos).sum())
                ended = bool(is_eos[-1])
        if size is not None and (wrong := tokens >= size).any():
            what = f"tokens outside the vocabulary of {size:,}"
            place = start + int(np.flatnonzero(wrong)[0])
            report.findings.append(FileFinding(path.name, "ids", what, place, int(wrong.sum())))
            break
    else:
        report.facts.hashes += digest.digest() if report.facts.tokens else b""
    _examine_lineage(path, report.facts.tokens, report)


def _examine_lineage(path: Path, input_tokens: Array | int, report: FileReport) -> None:
    if not foreign_lineage_path(path).is_file():
        return
    try:
        report.spans, findings = read_spans(path, input_tokens)
        report.findings += findings
    except (OSError, ValueError, KeyError, IndexError) as error:
        what = f"{foreign_lineage_path(path).name} cannot be read: {error}"
        report.findings.append(FileFinding(path.name, "lineage", what.splitlines()[0]))


MOST_HASHED_ROWS = 20_000_000
"""Rows that are compared with each other: 8 bytes of memory each, and a few times that to sort."""


def main() -> None:
    """Answer the request."""
    request = json.loads(sys.stdin.readline())
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    mapped = pages * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_AS, mapped + request["memory_bytes"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    groups = tuple((name, tuple(features)) for name, features in request["groups"])
    expectations = Expectations(request["vocab_size"], request["eos_id"], request["bos_id"])
    reports = []
    for name in request["files"]:
        _say({"begin": name})
        report = examine(Path(request["directory"]) / name, groups, expectations)
        reports.append(report)
        facts = {k: v for k, v in vars(report.facts).items() if k != "hashes"}
        findings = [asdict(finding) for finding in report.findings]
        _say({"file": name, "shapes": report.shapes, "facts": facts, "findings": findings})
    across, notes, not_checked = [], [], []
    spans = [report.spans for report in reports if report.spans is not None]
    if spans and len(spans) == len(reports):
        across = find_lost_or_repeated(LineageSpans.joined(spans))
    if sum(len(report.facts.hashes) // 8 for report in reports) > MOST_HASHED_ROWS:
        not_checked.append(f"repeated rows: more than {pluralise(MOST_HASHED_ROWS, 'row')}")
    else:
        across = [*find_copied_files(reports), *across]
        notes = find_repeated_rows(reports)
    kinds = {"across": across, "notes": notes}
    _say({k: [asdict(f) for f in v] for k, v in kinds.items()} | {"not_checked": not_checked})


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def find_repeated_rows(reports: Sequence[FileReport]) -> list[FileFinding]:
    """Rows with the very input ids of an earlier row: text that is there twice, as much text is."""
    hashes = np.concatenate([np.zeros(0, np.uint64), *map(_hashes, reports)])
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    again = np.sort(order[1:][same])
    if not len(again):
        return []
    first = int(again[0])
    for report in reports:
        if first < report.facts.rows:
            what = "the input ids of an earlier row"
            return [FileFinding(report.name, "repeated", what, first, len(again))]
        first -= report.facts.rows
    return []


def find_copied_files(reports: Sequence[FileReport]) -> list[FileFinding]:
    """Files of which another one has every row: the same file under another name, or rows that were
    written twice. One row alone may be a natural repeat, unless it is all of both files."""
    rows = [np.unique(_hashes(report)) for report in reports]
    copies = []
    for number, own in enumerate(rows):
        for other, theirs in enumerate(rows):
            if other == number or not np.isin(own[:1], theirs).any():
                continue
            is_same = np.array_equal(_hashes(reports[number]), _hashes(reports[other]))
            is_within = is_same or (len(own) > 1 and bool(np.isin(own, theirs).all()))
            if is_within and (other < number or len(theirs) > len(own)):
                what = "the same content as" if is_same else "all of its rows are in"
                what += f" {reports[other].name}"
                count = reports[number].facts.rows
                copies.append(FileFinding(reports[number].name, "copied", what, count=count))
                break
    return copies


def _hashes(report: FileReport) -> npt.NDArray[np.uint64]:
    return np.frombuffer(report.facts.hashes, np.uint64)


if __name__ == "__main__":
    main()
