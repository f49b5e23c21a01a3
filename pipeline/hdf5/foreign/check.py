"""Say in plain words what is wrong with a directory of HDF5 files that nobody vouches for.

The files are opened in a child process with limits on memory and time (`foreign_child`); here are
the rules about the directory as a whole. Nothing is repaired and nothing is written.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.words import format_duration, pluralise
from pipeline.hdf5.foreign.dataset import ForeignParams, disagreements, read_foreign_params
from pipeline.hdf5.foreign.rows import FileFinding
from pipeline.hdf5.format import SHARD_SUFFIX

ENOUGH_LABELS = 32_768
"""Counting labels after which a missing EOS is no accident: documents of the web have a few hundred
to a few thousand tokens."""


_NAMED = 5
"""Subdirectories that a message names."""

_SECONDS_TO_BEGIN = 120.0
_COMMAND = ("-m", "pipeline.hdf5.foreign.examine")


@dataclass(frozen=True)
class ChildLimits:
    """What the child process may use; memory on top of what it begins with."""

    memory_bytes: int = 4 << 30
    seconds_per_file: float = 600.0


@dataclass(kw_only=True)
class ForeignReport:
    """What a directory holds (sums over the files that could be read), and what is wrong with it.

    `notes` are worth knowing and not wrong; `not_checked` says what could not be told and why.
    """

    directory: Path
    layout: str = ""
    files: int = 0
    rows: int = 0
    max_sequence_length: int | None = None
    vocab_size: int | None = None
    eos_id: int | None = None
    bos_id: int | None = None
    facts: dict[str, int] = field(default_factory=dict)
    findings: list[FileFinding] = field(default_factory=list)
    notes: list[FileFinding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


def check_directory(
    directory: Path,
    vocab_size: int | None = None,
    eos_id: int | None = None,
    bos_id: int | None = None,
    *,
    limits: ChildLimits = ChildLimits(),
) -> ForeignReport:
    """Read everything in `directory` (or one .h5 file) and report.

    `vocab_size`, `eos_id` and `bos_id` are taken from `data_params.json` where they are not given.
    Raises InputError when there is no such directory.
    """
    paths = [directory] if directory.is_file() else sorted(directory.glob(f"*{SHARD_SUFFIX}"))
    root = directory.parent if directory.is_file() else directory
    if not root.is_dir():
        raise InputError(f"{directory}: no such directory")
    params, findings = read_foreign_params(root)
    report = ForeignReport(directory=directory, findings=findings, files=len(paths))
    report.vocab_size = vocab_size if vocab_size is not None else params.number("vocab_size")
    report.eos_id = eos_id if eos_id is not None else params.number("eos_id")
    report.bos_id = bos_id if bos_id is not None else params.number("bos_id")
    if not paths:
        below = sorted({p.parent.name for p in root.glob(f"*/*{SHARD_SUFFIX}")})
        hint = f"; name one of its directories: {', '.join(below[:_NAMED])}" if below else ""
        report.findings.append(FileFinding("", "no_files", f"no *{SHARD_SUFFIX} files in it{hint}"))
        return report
    answers = _Child(root, params, report, limits).examine([path.name for path in paths])
    _add_up(report, params, answers, whole=directory.is_dir())
    return report


class _Child:
    """Examines files in child processes: another one for the rest when one dies of a file."""

    def __init__(
        self, root: Path, params: ForeignParams, report: ForeignReport, limits: ChildLimits
    ) -> None:
        self.report, self.limits = report, limits
        self.request = {
            "directory": str(root),
            "groups": params.groups(),
            "vocab_size": report.vocab_size,
            "eos_id": report.eos_id,
            "bos_id": report.bos_id,
            "memory_bytes": limits.memory_bytes,
        }

    def examine(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """What was said of every file that could be examined."""
        answers: list[dict[str, Any]] = []
        remaining = list(names)
        while remaining:
            begun, problem = "", ""
            for answer in self._run(remaining):
                if "begin" in answer:
                    begun = answer["begin"]
                elif "file" in answer:
                    answers.append(answer)
                    remaining.remove(begun)
                elif "problem" in answer:
                    problem = answer["problem"]
                else:
                    self.report.findings += [FileFinding(**f) for f in answer["across"]]
                    self.report.notes += [FileFinding(**f) for f in answer["notes"]]
                    self.report.not_checked += answer["not_checked"]
                    return answers
            if begun not in remaining:
                raise InputError(f"the process that reads foreign files ended: {problem}")
            self.report.findings.append(FileFinding(begun, "limits", problem))
            self.report.not_checked.append(f"repeated and lost rows: {begun} could not be read")
            remaining = remaining[remaining.index(begun) + 1 :]
        return answers

    def _run(self, names: list[str]) -> Iterator[dict[str, Any]]:
        """Answers of one child, the last of them a problem when it did not end by itself."""
        environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "HDF5_PLUGIN_PRELOAD": "::",
        }
        command = [sys.executable, "-P", *_COMMAND]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        ) as child:
            assert child.stdin and child.stdout and child.stderr
            child.stdin.write(json.dumps({**self.request, "files": names}).encode() + b"\n")
            child.stdin.close()
            seconds = self.limits.seconds_per_file
            try:
                for line in _lines(child.stdout.fileno(), seconds):
                    yield json.loads(line)
            except TimeoutError:
                yield {"problem": f"reading it took longer than {format_duration(seconds)}"}
                return
            finally:
                child.kill()
            yield {"problem": self._last_words(child.wait(), child.stderr.read())}

    def _last_words(self, code: int, output: bytes) -> str:
        if b"MemoryError" in output or b"llocate" in output:
            return f"reading it needs more than {self.limits.memory_bytes:,} bytes of memory"
        if code < 0:
            return f"reading it crashed the HDF5 library (signal {-code})"
        last = output.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {code}"]
        return f"reading it failed: {last[0]}"


def _lines(handle: int, seconds: float) -> Iterator[bytes]:
    """Lines of a pipe until it ends; TimeoutError when none comes for so long after the first."""
    rest, end = b"", time.monotonic() + _SECONDS_TO_BEGIN
    while True:
        ready, _, _ = select.select([handle], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            raise TimeoutError
        data = os.read(handle, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            end = time.monotonic() + seconds
        yield from lines


def _add_up(
    report: ForeignReport, params: ForeignParams, answers: list[dict[str, Any]], whole: bool
) -> None:
    """Facts of all files, and what only shows when they are seen together."""
    for answer in answers:
        report.findings += [FileFinding(**finding) for finding in answer["findings"]]
        for name, value in answer["facts"].items():
            report.facts[name] = report.facts.get(name, 0) + value
    shaped = [answer for answer in answers if answer["shapes"]]
    if shaped:
        report.findings += _odd_files(shaped)
        shape = next(iter(shaped[0]["shapes"].values()))[1]
        report.max_sequence_length = shape[2] if len(shape) == 3 else None
        report.layout = {1: "corpus", 3: "sample"}.get(len(shape), "")
        if len(shape) == 3 and shape[1] == 5:
            report.layout = "vsl"
        rows = {a["file"]: next(iter(a["shapes"].values()))[1][0] for a in shaped}
        report.rows = sum(rows.values())
        if whole:
            report.findings += disagreements(params, rows, report.max_sequence_length)
    report.findings += _documents(report)
    report.findings += _windows(report, params)
    if report.vocab_size is None:
        report.not_checked.append("ids above the vocabulary: give --vocab-size")


def _odd_files(shaped: list[dict[str, Any]]) -> Iterator[FileFinding]:
    """Files whose datasets have another dtype or row shape than those of the first one."""
    first = {name: (d, tuple(s[1:])) for name, (d, s) in shaped[0]["shapes"].items()}
    for answer in shaped[1:]:
        for name, (dtype, shape) in answer["shapes"].items():
            if name in first and (dtype, tuple(shape[1:])) != first[name]:
                there, (kind, row) = shaped[0]["file"], first[name]
                what = f"{name!r} holds {dtype} rows of {tuple(shape[1:])}, "
                what += f"{there} holds {kind} rows of {row}"
                yield FileFinding(answer["file"], "differs", what)


def _documents(report: ForeignReport) -> Iterator[FileFinding]:
    """Whether there are EOS between documents, and a BOS behind each."""
    if report.eos_id is None:
        report.not_checked.append("EOS between documents: give --eos")
        return
    facts = report.facts
    inside, labels = facts.get("eos_inside", 0), facts.get("eos_labels", 0)
    ending = facts.get("rows_ending_with_eos", 0)
    counting = facts.get("tokens" if report.layout == "corpus" else "labels", 0)
    eos = f"EOS ({report.eos_id})"
    if report.layout == "sample" and not inside and ending > 1:
        what = f"{eos} ends {ending:,} full rows and is inside none of them"
        yield FileFinding("", "eos_overwrites", what, count=ending)
    elif not inside and not labels and counting >= ENOUGH_LABELS:
        yield FileFinding("", "no_eos", f"no {eos} among {pluralise(counting, 'token')} that count")
    elif not inside and not labels and counting:
        report.not_checked.append(
            f"EOS between documents: only {pluralise(counting, 'token')} to look at"
        )
    yield from _beginnings(report)


def _beginnings(report: ForeignReport) -> Iterator[FileFinding]:
    """Whether documents begin with BOS, as far as rows show where one begins: behind EOS."""
    if report.bos_id is None:
        return
    begins, begun = report.facts.get("after_eos", 0), report.facts.get("bos_after_eos", 0)
    if not begins:
        report.not_checked.append("BOS at the start of documents: no row shows where one starts")
    elif begun < begins:
        what = (
            f"{begins - begun:,} of {pluralise(begins, 'document')} that start inside a row "
            f"start{'s' if begins == 1 else ''} without BOS ({report.bos_id})"
        )
        yield FileFinding("", "no_bos", what)


def _windows(report: ForeignReport, params: ForeignParams) -> Iterator[FileFinding]:
    """Whether neighbouring rows of `sample` share a token, where rows are in stream order."""
    neighbours = report.facts.get("neighbours", 0)
    overlapping = report.facts.get("neighbours_that_overlap", 0)
    if report.layout != "sample" or not neighbours or 2 * overlapping >= neighbours:
        return
    if params.rows_are_in_order():
        apart = neighbours - overlapping
        what = f"{apart:,} of {neighbours:,} neighbouring rows do not overlap by one token"
        yield FileFinding("", "windows", what, count=apart)
    else:
        report.not_checked.append(
            "whether windows overlap by one token: rows are shuffled, or nothing says that they "
            "are in order"
        )
