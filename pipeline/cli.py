"""The `prep` command: parses, calls, prints; no logic."""

import json
import signal
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pipeline.cli_clean import register as register_clean
from pipeline.cli_clusters import register as register_clusters
from pipeline.cli_convert import register as register_convert
from pipeline.cli_dedup import register as register_dedup
from pipeline.cli_disclose import register as register_disclose
from pipeline.cli_export import register as register_export
from pipeline.cli_policy import register as register_policy
from pipeline.cli_quarantine import register as register_quarantine
from pipeline.cli_registry import register as register_registry
from pipeline.cli_repack import describe_split
from pipeline.cli_repack import register as register_repack
from pipeline.cli_rescan import register as register_rescan
from pipeline.cli_screen import register as register_screen
from pipeline.cli_search import register as register_search
from pipeline.cli_takedown import register as register_takedown
from pipeline.cli_tokenizer import register as register_tokenizer
from pipeline.cli_trace import register as register_trace
from pipeline.core.errors import PrepError, escape_text
from pipeline.core.figures import format_bytes as _bytes
from pipeline.options import (
    JsonOption,
    WorkersOption,
    check_first,
    complete_configs,
    complete_runs,
)
from pipeline.show_mixture import show_mixture
from pipeline.terminal import format_cell as _shown
from pipeline.terminal import format_duration

if TYPE_CHECKING:
    from pipeline.upkeep import WorkStatus

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Prepare pre-training data: raw text in, HDF5 token shards with lineage out.",
    epilog="Examples:\n\n`prep run quickstart` prepares the sample that comes with the package\n\n"
    "`prep plan pile.yaml` shows what a config would do; `prep COMMAND --help` shows options and "
    "examples",
)
_PLAIN_WIDTH = 240
_LONGEST_LINE = 4000
"""Characters of a line of an error."""
_out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)

ConfigArgument = Annotated[
    str,
    typer.Argument(
        help="a YAML file, or a shipped config such as quickstart", autocompletion=complete_configs
    ),
]
DirectoryArgument = Annotated[
    Path, typer.Argument(help="a run directory", autocompletion=complete_runs)
]
OutOption = Annotated[Path | None, typer.Option(help="run directory [default: ./runs/NAME]")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="change a value of the config, repeatable; relative paths start at the working "
        "directory",
    ),
]


def _print_version(asked: bool) -> None:
    if asked:
        _out.print(f"wafermill {version('wafermill')}")
        raise typer.Exit


@app.callback()
def _before(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None: ...


@app.command(
    epilog="Examples:\n\n`prep run quickstart`\n\n`prep run pile.yaml --out /data/run --workers 8 "
    "--set pack.max_sequence_length=1024`"
)
def run(
    config: ConfigArgument,
    out: OutOption = None,
    workers: WorkersOption = None,
    set_: SetOption = None,
    verify_inputs: Annotated[
        bool,
        typer.Option(
            help="hash the raw shards again, even if size and time of modification are unchanged"
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="show the plan and stop")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prepare data by a config. Finished work is reused, and an interrupted run resumes."""
    if dry_run:
        return plan(config, out, set_, as_json)
    from pipeline.config import load_config
    from pipeline.preparation import run as run_config
    from pipeline.progress import Progress

    loaded = load_config(config, tuple(set_ or ()))
    manifest = run_config(loaded, out, workers, verify_inputs=verify_inputs, progress=Progress())
    ledger = json.loads((manifest.directory / "ledger.json").read_bytes())
    if as_json:
        summary = {
            "directory": str(manifest.directory),
            "reused": list(manifest.reused),
            "ledger": ledger,
        }
        return _out.print_json(json.dumps(summary))
    _print_ledger(ledger)
    fresh = len(manifest.stages) - len(manifest.reused)
    if fresh == 0:
        _out.print(f"everything was up to date: all {len(manifest.stages)} stages reused")
    data_sets = ", ".join(f"hdf5/{name}" for name in ledger["splits"])
    _out.print(f"outputs: {manifest.directory}/  (report.html, manifest.json, {data_sets})")
    return None


@app.command(epilog="Example: `prep plan pile.yaml`")
def plan(
    config: ConfigArgument,
    out: OutOption = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a config and show what would run. Nothing is written to the run directory."""
    from pipeline.config import load_config
    from pipeline.preparation import prepare
    from pipeline.show_plan import show_plan

    show_plan(prepare(load_config(config, tuple(set_ or ())), out), as_json)


@app.command(epilog="Example: `prep status runs/quickstart`")
def status(directory: DirectoryArgument, as_json: JsonOption = False) -> None:
    """Show which stages of a run are done, which process is working on it, and how far it is."""
    from pipeline.upkeep import read_status, read_work

    finished, stages = read_status(directory)
    work = read_work(directory)
    if as_json:
        value = {"finished": finished, "stages": [vars(s) for s in stages], "work": vars(work)}
        return _out.print_json(json.dumps(value))
    table = Table("stage", "state", "tasks", "size")
    for s in stages:
        table.add_row(s.stage, s.state, str(s.tasks), _bytes(s.bytes))
    _out.print(table)
    if finished and not work.is_held:
        return _out.print("finished")
    _show_work(work)
    return None


def _show_work(work: "WorkStatus") -> None:
    if work.stage:
        parts = [f"{work.stage}: {work.done:,} of {work.tasks:,} tasks done"]
        parts += [f"{work.reused:,} reused"] if work.reused else []
        parts += [f"{work.documents:,} documents"] if work.documents else []
        _out.print(f"{', '.join(parts)}; last progress {format_duration(work.idle_seconds)} ago")
    if work.is_held:
        _out.print(f"not finished; {work.holder} is working on it", markup=False)
    else:
        last = f" (last: {work.holder})" if work.holder else ""
        _out.print(
            f"not finished, and no process is working on it{last}; the command that began it "
            "resumes it",
            markup=False,
        )


@app.command(
    epilog="Examples:\n\n`prep verify runs/quickstart`\n\n"
    "`prep verify runs/quickstart --lineage 10000`\n\n"
    "`prep verify --hdf5 /data/from/elsewhere --vocab-size 50257 --eos 50256`"
)
def verify(
    directory: DirectoryArgument,
    lineage: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="tokenize the text of N spans again and compare"),
    ] = None,
    hdf5: Annotated[
        bool, typer.Option(help="check a directory of .h5 files, whoever wrote them")
    ] = False,
    vocab_size: Annotated[
        int | None, typer.Option(help="with --hdf5: every id must be below this")
    ] = None,
    eos: Annotated[
        int | None, typer.Option(help="with --hdf5: the id that separates documents")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a finished run: hashes, ledger, HDF5 contract, EOS count, lineage coverage.

    With --lineage, N spans of tokens are drawn from the shuffled shards, their texts are tokenized
    again, and the tokens are compared one by one. With --hdf5, the directory is any directory of
    HDF5 files, and what is wrong with it is listed. Exit code 4 means that something is wrong.
    """
    if hdf5:
        from pipeline.hdf5.foreign import check_directory
        from pipeline.show_hdf5 import show_foreign

        return show_foreign(check_directory(directory, vocab_size, eos), as_json)
    from pipeline.verify import verify as verify_run

    checks = verify_run(directory, lineage)
    if as_json:
        return _out.print_json(json.dumps([vars(check) for check in checks]))
    for check in checks:
        _out.print(f"ok  {check.name}: {check.detail}", markup=False)
    return None


@app.command("clean-up", epilog="Example: `prep clean-up runs/quickstart`")
def clean_up(directory: DirectoryArgument) -> None:
    """Delete intermediate files that are no longer needed; verify and trace still work."""
    from pipeline.upkeep import clean_up as remove

    removed, freed = remove(directory)
    _out.print(f"removed {', '.join(removed) or 'nothing'}: {_bytes(freed)} freed")


register_dedup(app)
register_clean(app)
register_clusters(app)
register_convert(app)
register_disclose(app)
register_export(app)
register_policy(app)
register_quarantine(app)
register_registry(app)
register_repack(app)
register_rescan(app)
register_screen(app)
register_search(app)
register_takedown(app)
register_tokenizer(app)
register_trace(app)
check_first(app)


def _print_ledger(ledger: dict[str, Any]) -> None:
    table = Table("source", title="documents by source")
    for name in (
        "records",
        "bad",
        "dropped",
        "quarantined",
        "duplicates",
        "kept",
        "kept MB",
        "tokens",
    ):
        table.add_column(name, justify="right")
    totals = [0.0] * 8
    for name, source in ledger["sources"].items():
        values = _source_values(source)
        totals = [a + b for a, b in zip(totals, values, strict=True)]
        table.add_row(_shown(name), *_cells(values))
    table.add_section()
    table.add_row("all", *_cells(totals))
    _out.print(table)
    show_mixture(ledger.get("mixture", {}))
    for name, split in ledger["splits"].items():
        _out.print(describe_split(name, split))
    _out.print("ledger: balanced")


def _source_values(source: dict[str, Any]) -> list[float]:
    bad = sum(t["documents"] for t in source["bad"].values())
    dropped = sum(t["documents"] for t in source["dropped"].values())
    return [
        source["records"]["documents"],
        bad,
        dropped,
        source["quarantined"]["documents"],
        source["duplicates"]["documents"],
        source["kept"]["documents"],
        source["kept"]["bytes"] / 1e6,
        source["tokens"],
    ]


def _cells(values: list[float]) -> list[str]:
    return [f"{v:,.2f}" if i == 6 else f"{int(v):,}" for i, v in enumerate(values)]


def main() -> None:
    """Entry point: every PrepError becomes its message and exit code, never a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.exit(run_app(app, "prep"))


class _StopSignal(BaseException):
    """SIGINT or SIGTERM arrived; no KeyboardInterrupt, which typer turns into a return value."""


def _stop(number: int, frame: object) -> None:
    raise _StopSignal(number)


def run_app(command: Callable[..., Any], name: str) -> int:
    """Run a typer app; returns the exit code."""
    try:
        code = command(standalone_mode=False, prog_name=name)
    except PrepError as error:
        lines = (escape_text(line, _LONGEST_LINE) for line in str(error).split("\n"))
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"{name}:", "\n".join(lines), markup=False)
        return error.exit_code
    except _StopSignal as stop:
        hint = "stopped; finished work is kept, run the same command again to resume"
        Console(stderr=True, soft_wrap=True).print(f"{name}: {hint}")
        return 128 + int(stop.args[0])
    except typer.Exit as end:
        return end.exit_code
    except Exception as error:  # noqa: BLE001 - shown when click's own, raised again when not
        return _usage_error(error, name)
    return code if isinstance(code, int) else 0


def _usage_error(error: Exception, name: str) -> int:
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if show is None or code is None:
        raise error
    show()
    return int(code)
