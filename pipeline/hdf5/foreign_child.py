"""The child process that opens foreign files: one request on stdin, lines of JSON on stdout.

HDF5 is a large C library with a record of memory errors, so files that nobody vouches for are
parsed where a crash, a bomb or an endless loop ends this process alone. It may not grow beyond its
memory limit, write files or dump core. Run by `pipeline.hdf5.foreign`; not a command of its own.
"""

import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.core.words import pluralise
from pipeline.hdf5.findings import FileFinding
from pipeline.hdf5.foreign_file import FileReport, examine
from pipeline.hdf5.foreign_lineage import LineageSpans, find_lost_or_repeated
from pipeline.hdf5.foreign_rows import Expectations

MOST_HASHED_ROWS = 20_000_000
"""Rows that are compared with each other: 8 bytes of memory each, and a few times that to sort."""


def main() -> None:
    """Answer the request."""
    request = json.loads(sys.stdin.readline())
    for limit, value in (
        (resource.RLIMIT_AS, _address_space() + request["memory_bytes"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    groups = tuple((name, tuple(features)) for name, features in request["groups"])
    expectations = Expectations(request["vocab_size"], request["eos_id"])
    reports = []
    for name in request["files"]:
        _say({"begin": name})
        report = examine(Path(request["directory"]) / name, groups, expectations)
        reports.append(report)
        facts = {k: v for k, v in vars(report.facts).items() if k != "hashes"}
        findings = [asdict(finding) for finding in report.findings]
        _say({"file": name, "shapes": report.shapes, "facts": facts, "findings": findings})
    across, notes, not_checked = _lost(reports), [], []
    if sum(len(report.facts.hashes) // 8 for report in reports) > MOST_HASHED_ROWS:
        not_checked.append(f"repeated rows: more than {pluralise(MOST_HASHED_ROWS, 'row')}")
    else:
        across = [*copied_files(reports), *across]
        notes = repeated_rows(reports)
    found = {"across": across, "notes": notes}
    _say({k: [asdict(f) for f in v] for k, v in found.items()} | {"not_checked": not_checked})


def _address_space() -> int:
    """Bytes that this process has mapped, its libraries included."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def repeated_rows(reports: Sequence[FileReport]) -> list[FileFinding]:
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


def copied_files(reports: Sequence[FileReport]) -> list[FileFinding]:
    """Files of which another one has every row: the same file under another name, or rows that were
    written twice. One row alone may be a natural repeat, unless it is all of both files."""
    rows = [np.unique(_hashes(report)) for report in reports]
    found = []
    for number, own in enumerate(rows):
        for other, known in enumerate(rows):
            if other == number or not np.isin(own[:1], known).any():
                continue
            is_same = np.array_equal(_hashes(reports[number]), _hashes(reports[other]))
            is_within = is_same or (len(own) > 1 and bool(np.isin(own, known).all()))
            if is_within and (other < number or len(known) > len(own)):
                what = "the same content as" if is_same else "all of its rows are in"
                what += f" {reports[other].name}"
                count = reports[number].facts.rows
                found.append(FileFinding(reports[number].name, "copied", what, count=count))
                break
    return found


def _hashes(report: FileReport) -> npt.NDArray[np.uint64]:
    return np.frombuffer(report.facts.hashes, np.uint64)


def _lost(reports: Sequence[FileReport]) -> list[FileFinding]:
    """Only where every file has its lineage."""
    parts = [report.spans for report in reports if report.spans is not None]
    if not parts or len(parts) < len(reports):
        return []
    return find_lost_or_repeated(LineageSpans.joined(parts))


if __name__ == "__main__":
    main()
