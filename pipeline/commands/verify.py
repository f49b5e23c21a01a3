"""`prep status`, `prep log`, `prep verify` and `prep clean-up`: what a directory holds, what
happened to it, and what is wrong with it; and what is deleted of it.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.options import JsonOption, RunArgument
from pipeline.commands.terminal import print_facts, print_json, print_line, show_table
from pipeline.commands.usage import commands
from pipeline.core.errors import IntegrityError
from pipeline.core.words import format_bytes, format_duration, pluralise
from pipeline.runs.generations import Generation, list_begun, list_generations

if TYPE_CHECKING:
    from pipeline.hdf5.foreign.check import ForeignReport
    from pipeline.hdf5.foreign.rows import FileFinding
    from pipeline.runs.events import Event
    from pipeline.stories.status import Session, WorkStatus


def status(directory: RunArgument, as_json: JsonOption = False) -> None:
    """Show which stages of a run are done, which process is working on it, and how far it is.

    Example: prep status runs/quickstart
    """
    begun = list_begun(directory)
    if as_json:
        value = _read_status(begun[0])
        if len(begun) > 1:
            later = ({"generation": g.number, **_read_status(g)} for g in begun[1:])
            value["generations"] = list(later)
        return print_json(value)
    for generation in begun:
        if len(begun) > 1:
            print_line(f"{generation.name}: {generation.directory}/")
        _show_status(generation)
    return None


def _read_status(generation: Generation) -> dict[str, Any]:
    from pipeline.stories.status import read_status, read_work

    finished, stages = read_status(generation.directory)
    work = read_work(generation.directory)
    return {"finished": finished, "stages": [vars(s) for s in stages], "work": vars(work)}


def _show_status(generation: Generation) -> None:
    from pipeline.stories.status import read_status, read_work

    finished, stages = read_status(generation.directory)
    work = read_work(generation.directory)
    rows = ((s.stage, s.state, s.tasks, format_bytes(s.bytes)) for s in stages)
    show_table(("stage", "state", ">tasks", ">size"), rows)
    if finished and not work.is_held:
        return print_line("finished")
    return _show_work(work)


def _show_work(work: "WorkStatus") -> None:
    if work.stage:
        parts = [f"{work.stage}: {work.done:,} of {work.tasks:,} tasks done"]
        parts += [f"{work.reused:,} reused"] if work.reused else []
        parts += [f"{work.documents:,} documents"] if work.documents else []
        print_line(f"{', '.join(parts)}; last progress {format_duration(work.idle_seconds)} ago")
    if work.is_held:
        print_line(f"not finished; {work.holder} is working on it")
    else:
        last = f" (last: {work.holder})" if work.holder else ""
        print_line(
            f"not finished, and no process is working on it{last}; the command that began it "
            "resumes it"
        )


def log(directory: RunArgument, as_json: JsonOption = False) -> None:
    """Show what happened to a run: each start of a command, what it made and why, and what people
    decided.

    Times are UTC. The last column names the run that a command left: equal hashes, equal runs.

    Example: prep log runs/quickstart
    """
    from pipeline.stories.status import Session, read_run_log

    begun = list_begun(directory)
    entries = [(entry, g) for g in begun for entry in read_run_log(g.directory)]
    entries.sort(key=lambda pair: pair[0].at)
    several = len(begun) > 1
    if as_json:
        return print_json(
            [{**asdict(e), **({"generation": g.number} if several else {})} for e, g in entries]
        )
    rows = []
    for entry, generation in entries:
        if isinstance(entry, Session):
            at, what, *rest = _session_row(entry)
        else:
            at, what, *rest = entry.at, *_event_row(entry)
        rows.append((at, f"{what}, {generation.name}" if several else what, *rest))
    return show_table(("when", "what", "state", ">seconds", "made", "run"), rows)


_SHOWN = 12
"""Characters of a hash."""


def _session_row(session: "Session") -> tuple[str, ...]:
    workers = pluralise(session.workers, "worker") if session.workers else "no workers"
    made = pluralise(len(session.made), "stage") if session.made else "nothing"
    first = next((stage for stage in session.made), None)
    if first is not None:
        why = f"changed: {', '.join(first.changed)}" if first.changed else "new"
        why = f"{len(session.problems):,} damaged" if session.problems else why
        made += f", from {first.stage} on ({why})"
    seconds = "" if session.seconds is None else format_duration(session.seconds)
    what = f"{session.story} {session.config}, {workers}"
    return session.at, what, session.state, seconds, made, session.run[:_SHOWN]


def _event_row(event: "Event") -> tuple[str, ...]:
    facts = (f"{key} {str(value)[:_SHOWN]}" for key, value in event.what.items())
    return f"{event.kind} by {event.by}", "", "", ", ".join(facts), ""


def verify(
    directory: RunArgument,
    lineage: Annotated[int | None, typer.Option(min=1)] = None,
    hdf5: bool = False,
    vocab_size: int | None = None,
    eos: int | None = None,
    bos: int | None = None,
    as_json: JsonOption = False,
) -> None:
    """Check a finished run: hashes, ledger, HDF5 contract, EOS count, lineage coverage.

    With --lineage, N spans of tokens are drawn from the shuffled shards, their texts are tokenized
    again, and the tokens are compared one by one. With --hdf5, the directory is any directory of
    HDF5 files, and what is wrong with it is listed. Exit code 4 means that something is wrong.

    --lineage N: tokenize the text of N spans again and compare
    --hdf5/--no-hdf5: check a directory of .h5 files, whoever wrote them
    --vocab-size: with --hdf5: every id must be below this
    --eos: with --hdf5: the id that separates documents
    --bos: with --hdf5: the id that every document must begin with

    Examples:
    prep verify runs/quickstart
    prep verify runs/quickstart --lineage 10000
    prep verify --hdf5 /data/from/elsewhere --vocab-size 50257 --eos 50256
    prep verify --hdf5 llama_rows/ --eos 128001 --bos 128000
    """
    from pipeline.hdf5.foreign.check import check_directory
    from pipeline.stories.verify import verify_run

    if hdf5:
        return show_foreign(check_directory(directory, vocab_size, eos, bos), as_json)
    checks = verify_run(directory, lineage)
    if as_json:
        return print_json([vars(check) for check in checks])
    for check in checks:
        print_line(f"ok  {check.name}: {check.detail}")
    return None


def clean_up(directory: RunArgument) -> None:
    """Delete intermediate files that are no longer needed; verify and trace still work.

    With `pack.append`, what later generations are compared with stays.

    Example: prep clean-up runs/quickstart
    """
    from pipeline.stories.status import delete_intermediates

    for generation in list_generations(directory):
        removed, freed = delete_intermediates(generation.directory)
        of = f"{generation.name}: " if generation.number else ""
        print_line(f"{of}removed {', '.join(removed) or 'nothing'}: {format_bytes(freed)} freed")


register = commands(status, log, verify, clean_up)


def show_foreign(report: "ForeignReport", as_json: bool) -> None:
    """Print it. Raises IntegrityError when anything is wrong, so that the exit code tells."""
    if as_json:
        lists = {"findings": report.findings, "notes": report.notes}
        plain = {k: [{**asdict(f), "why": f.why} for f in part] for k, part in lists.items()}
        value = {**vars(report), "directory": str(report.directory), **plain}
        print_json(value)
    else:
        _print(report)
    if report.findings:
        count = len(report.findings)
        raise IntegrityError(f"{report.directory}: {pluralise(count, 'problem')} found")


def _print(report: "ForeignReport") -> None:
    facts = report.facts
    length = report.max_sequence_length
    unit = "tokens" if report.layout == "corpus" else "rows"
    print_facts(
        [
            ("layout", report.layout or "unknown"),
            ("files", f"{report.files:,}"),
            (unit, f"{report.rows:,}" + (f" of {pluralise(length, 'token')}" if length else "")),
            ("labels", f"{facts['labels']:,}" if facts.get("labels") else ""),
            (
                "padded",
                f"{pluralise(facts['padded_rows'], 'row')}" if facts.get("padded_rows") else "",
            ),
            ("vocabulary", f"{report.vocab_size:,}" if report.vocab_size is not None else ""),
            ("EOS", f"{report.eos_id}" if report.eos_id is not None else ""),
            ("BOS", f"{report.bos_id}" if report.bos_id is not None else ""),
        ]
    )
    for line in report.not_checked:
        print_line(f"not checked: {line}")
    for mark, findings in (("note ", report.notes), ("wrong", report.findings)):
        for finding in findings:
            print_line(f"{mark}  {_place(finding)}{finding.what}")
            print_line(f"       {finding.why}")
    if not report.findings:
        print_line("no problem was found")


def _place(finding: "FileFinding") -> str:
    """Where, as a prefix.

    >>> from pipeline.hdf5.foreign.rows import FileFinding
    >>> _place(FileFinding("a.h5", "labels", "", 3, 12))
    'a.h5, row 3 and 11 more: '
    """
    if finding.row is None:
        return f"{finding.file}: " if finding.file else ""
    more = f" and {finding.count - 1:,} more" if finding.count > 1 else ""
    return f"{finding.file}, row {finding.row:,}{more}: "
