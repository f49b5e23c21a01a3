"""`prep verify --hdf5` on the terminal: what a directory holds and what is wrong with it."""

from dataclasses import asdict

from pipeline.core.errors import IntegrityError
from pipeline.core.words import pluralise
from pipeline.hdf5.findings import FileFinding
from pipeline.hdf5.foreign import ForeignReport
from pipeline.terminal import print_facts, print_json, print_line


def show_foreign(report: ForeignReport, as_json: bool) -> None:
    """Print it. Raises IntegrityError when anything is wrong, so that the exit code tells."""
    if as_json:
        lists = {"findings": report.findings, "notes": report.notes}
        plain = {k: [{**asdict(f), "why": f.why} for f in found] for k, found in lists.items()}
        value = {**vars(report), "directory": str(report.directory), **plain}
        print_json(value)
    else:
        _print(report)
    if report.findings:
        count = len(report.findings)
        raise IntegrityError(f"{report.directory}: {pluralise(count, 'problem')} found")


def _print(report: ForeignReport) -> None:
    facts = report.facts
    length = report.max_sequence_length
    unit = "tokens" if report.layout == "corpus" else "rows"
    print_facts([
        ("layout", report.layout or "unknown"),
        ("files", f"{report.files:,}"),
        (unit, f"{report.rows:,}" + (f" of {pluralise(length, 'token')}" if length else "")),
        ("labels", f"{facts['labels']:,}" if facts.get("labels") else ""),
        ("padded", f"{pluralise(facts['padded_rows'], 'row')}" if facts.get("padded_rows") else ""),
        ("vocabulary", f"{report.vocab_size:,}" if report.vocab_size is not None else ""),
        ("EOS", f"{report.eos_id}" if report.eos_id is not None else ""),
    ])  # fmt: skip
    for line in report.not_checked:
        print_line(f"not checked: {line}")
    for mark, listed in (("note ", report.notes), ("wrong", report.findings)):
        for finding in listed:
            print_line(f"{mark}  {_place(finding)}{finding.what}")
            print_line(f"       {finding.why}")
    if not report.findings:
        print_line("no problem was found")


def _place(finding: FileFinding) -> str:
    """Where, as a prefix.

    >>> _place(FileFinding("a.h5", "labels", "", 3, 12))
    'a.h5, row 3 and 11 more: '
    """
    if finding.row is None:
        return f"{finding.file}: " if finding.file else ""
    more = f" and {finding.count - 1:,} more" if finding.count > 1 else ""
    return f"{finding.file}, row {finding.row:,}{more}: "
