"""The `train jobs` commands: parse, call, print; no logic."""

import json
import time
from enum import StrEnum
from typing import Annotated

import typer

from trainer.cli_errors import one_line_errors
from trainer.job_store import JobStore, as_json, current_user, parse_labels
from trainer.job_table import table

NOUN = "job"

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="The list lies in $WAFERMILL_JOBS, else in wafermill/jobs of the cache directory.",
)


class OutputName(StrEnum):
    """How to print."""

    table = "table"
    json = "json"


@app.callback()
def own(context: typer.Context) -> None:
    """List your runs on this machine, whatever their state; or list all, cancel and label."""
    if context.invoked_subcommand is None:
        with one_line_errors():
            mine = [job for job in JobStore.default().jobs() if job.user == current_user()]
            print(table(mine, time.time()))


@app.command(epilog="Examples: train jobs get · train jobs get -a · train jobs get -a -o json")
def get(
    everything: Annotated[
        bool, typer.Option("--all-states", "-a", help="Also jobs that are over.")
    ] = False,
    output: Annotated[
        OutputName, typer.Option("--output", "-o", help="What to print.")
    ] = OutputName.table,
) -> None:
    """List jobs: those that are queued or running, or all."""
    with one_line_errors():
        jobs = [job for job in JobStore.default().jobs() if everything or job.active]
        if output is OutputName.json:
            print(json.dumps([as_json(job) for job in jobs], indent=1))
        else:
            print(table(jobs, time.time()))


@app.command(epilog="Example: train jobs cancel job wsjob-000001")
def cancel(
    words: Annotated[list[str], typer.Argument(metavar="[job] ID", help="Id of the job.")],
) -> None:
    """Stop a run: it writes a checkpoint and exits with 143."""
    with one_line_errors():
        for name in _without_noun(words):
            JobStore.default().cancel(name)
            print("Job canceled successfully")


@app.command(epilog="Example: train jobs label job wsjob-000001 team=nlp old-")
def label(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[job] ID LABEL...", help="k=v sets a label, k- removes it."),
    ],
) -> None:
    """Set and remove labels of a job."""
    with one_line_errors():
        name, *labels = _without_noun(words)
        JobStore.default().label(name, parse_labels(labels, removals=True))
        print(f"{name} labeled")


def _without_noun(words: list[str]) -> list[str]:
    """`csctl cancel job ID` names the kind of thing first; here it may be left out."""
    return words[1:] if words[0] == NOUN and len(words) > 1 else words
