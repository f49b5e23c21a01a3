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

from pipeline.hdf5.findings import Finding
from pipeline.hdf5.foreign_file import FileReport, examine
from pipeline.hdf5.foreign_lineage import Spans, lost_or_repeated
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
    across = [*repeated_rows(reports), *_lost(reports)]
    _say({"across": [asdict(finding) for finding in across]})


def _address_space() -> int:
    """Bytes that this process has mapped, its libraries included."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def repeated_rows(reports: Sequence[FileReport]) -> list[Finding]:
    """Rows with the very input ids of an earlier row."""
    hashes = np.frombuffer(b"".join(report.facts.hashes for report in reports), np.uint64)
    if len(hashes) > MOST_HASHED_ROWS:
        return []
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    again = np.sort(order[1:][same])
    if not len(again):
        return []
    first = int(again[0])
    for report in reports:
        if first < report.facts.rows:
            what = "input ids of an earlier row again"
            return [Finding(report.name, "repeated", what, first, len(again))]
        first -= report.facts.rows
    return []


def _lost(reports: Sequence[FileReport]) -> list[Finding]:
    """Only where every file has its lineage."""
    parts = [report.spans for report in reports if report.spans is not None]
    if not parts or len(parts) < len(reports):
        return []
    return lost_or_repeated(Spans.joined(parts))


if __name__ == "__main__":
    main()
