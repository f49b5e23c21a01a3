"""The `prep` command: finds the command that is called, and shows errors."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from pipeline.commands.options import check_first
from pipeline.commands.streams import StopSignal, guarded_streams
from pipeline.commands.terminal import out
from pipeline.commands.usage import LazyCommands, Table
from pipeline.core.errors import PrepError, escape_text

_LONGEST_LINE = 4000
"""Characters of a line of an error."""

_LISTED = """
run        run        Prepare data by a config. Finished work is reused, and an interrupted run
                      resumes.
plan       run        Check a config and show what would run. Nothing is written to the run
                      directory.
status     verify     Show which stages of a run are done, which process is working on it, and how
                      far it is.
log        verify     Show what happened to a run: each start of a command, what it made and why,
                      and what people decided.
verify     verify     Check a finished run: hashes, ledger, HDF5 contract, EOS count, lineage
                      coverage.
clean-up   verify     Delete intermediate files that are no longer needed; verify and trace still
                      work.
dedup      dedup      Copy records without their duplicates, byte for byte, to files with the same
                      names.
clean      clean      Repair the text of records, and drop short ones and those that rules of your
                      choice refuse.
explain    explain    Show what became of a document; a duplicate is shown next to the document that
                      was kept.
explore    explore    Look at a run in the browser: its documents, filters, distributions, and
                      each document whole.
inspect    inspect    Show the duplicate clusters of a run, or with --dropped what left for a
                      reason.
convert    convert    Convert a data set to another form: HDF5, .bin with .idx, MDS, LitData,
                      parquet or jsonl.
push       export     Upload the data set of a run to the Hugging Face Hub, with a card and a
                      Croissant file.
disclose   export     Write documents about a run: audit report, dataset card, Croissant, SPDX,
                      disclosure drafts.
export     export     Write the text of a run in training order.
ngram      ngram      Train n-gram models for the signal `perplexity`, and measure by them.
policy     policy     Check, compare and explain policies of screening, and record reviews.
quarantine quarantine List, read, release or delete quarantined texts.
registry   registry   Keep registries of works to look for in documents. An entry states what its
                      source says.
repack     export     Pack the tokens of a run again with other settings; nothing is tokenized,
                      splits stay.
rescan     export     Search the documents of a finished run for works that were registered later.
screen     clean      Look for listed origins, works, licences and opt-outs in documents, and decide
                      by a policy.
search     search     Find words in the texts of a run, word for word or nearly.
takedown   takedown   Take documents down: show what a claim covers, or remove it from the run.
tokenizer  tokenizer  Train, compare and convert tokenizers.
trace      search     Trace training data: from a step, checkpoint, row or token back to documents,
                      or forward.
"""
"""Command, module in this package, and the first paragraph of the help."""


def _read_table(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for line in text.strip().replace("\n ", " ").splitlines():
        name, module, *words = line.split()
        yield name, (f"pipeline.commands.{module}", " ".join(words))


COMMANDS: Table = dict(_read_table(_LISTED))


def _new_app() -> typer.Typer:
    return typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)


class CommandGroup(TyperGroup):
    """The group of all commands; its help and shell completion import none of them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands: Any = LazyCommands(COMMANDS, _new_app, check_first, {})

    def format_help(self, context: Any, formatter: Any) -> None:
        """Write the help."""
        with self.commands.listing():
            super().format_help(context, formatter)

    def shell_complete(self, context: Any, incomplete: str) -> list[Any]:
        """Names of commands for the shell."""
        with self.commands.listing():
            return super().shell_complete(context, incomplete)


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Prepare pre-training data: raw text in, HDF5 token shards with lineage out.",
    epilog="Examples:\n\n`prep run quickstart` prepares the sample that comes with the package\n\n"
    "`prep plan pile.yaml` shows what a config would do; `prep COMMAND --help` shows options and "
    "examples",
)


def _print_version(is_on: bool) -> None:
    if is_on:
        from importlib.metadata import version

        out.print(f"wafermill {version('wafermill')}")
        raise typer.Exit


@app.callback()
def _before(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point: every PrepError becomes its message and exit code, never a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    with guarded_streams("prep"):
        sys.exit(run_app(app, "prep"))


def _stop(number: int, frame: object) -> None:
    raise StopSignal(number)


def run_app(command: Callable[..., Any], name: str) -> int:
    """Run a typer app; returns the exit code. With --json among the arguments of this process an
    error is a line of JSON, as progress is."""
    try:
        code = command(standalone_mode=False, prog_name=name)
    except PrepError as error:
        _show("error", name, str(error), error.exit_code)
        return error.exit_code
    except StopSignal as stop:
        hint = "stopped; finished work is kept, run the same command again to resume"
        _show("stopped", name, hint, stop.exit_code)
        return stop.exit_code
    except typer.Exit as end:
        return end.exit_code
    except Exception as error:  # noqa: BLE001 - shown when click's own, raised again when not
        return _usage_error(error, name)
    return code if isinstance(code, int) else 0


def _usage_error(error: Exception, name: str) -> int:
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if show is None or code is None:
        raise error
    if _wants_json():
        _show("error", name, error.format_message(), int(code))  # type: ignore[attr-defined]
    else:
        show()
    return int(code)


def _wants_json() -> bool:
    return "--json" in takewhile(lambda word: word != "--", sys.argv[1:])


def _show(event: str, name: str, message: str, code: int) -> None:
    """What ended the command, on standard error."""
    if _wants_json():
        fields = {"event": event, "message": message, "exit_code": code}
        return print(json.dumps(fields), file=sys.stderr)
    lines = (escape_text(line, _LONGEST_LINE) for line in message.split("\n"))
    console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    return console.print(f"{name}:", "\n".join(lines), markup=False)
