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

EXAMPLES = """\b
Examples:
  train jobs
  train jobs get --all-states
  train jobs cancel job wsjob-000001

\b
The list is kept in $WAFERMILL_JOBS; if it is not set, in wafermill/jobs of the cache directory.
"""

GET_EXAMPLES = """\b
Examples:
  train jobs get
  train jobs get -a -o json
"""

CANCEL_EXAMPLES = """\b
Example:
  train jobs cancel job wsjob-000001
"""

LABEL_EXAMPLES = """\b
Example:
  train jobs label job wsjob-000001 team=nlp old-
"""

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
)


class OutputName(StrEnum):
    """How to print."""

    table = "table"
    json = "json"


@app.callback()
def own(context: typer.Context) -> None:
    """List your runs on this machine, in every state; list all runs, cancel and label them."""
    if context.invoked_subcommand is None:
        with one_line_errors():
            mine = [job for job in JobStore.default().jobs() if job.user == current_user()]
            print(table(mine, time.time()))


@app.command(epilog=GET_EXAMPLES)
def get(
    everything: Annotated[
        bool, typer.Option("--all-states", "-a", help="Also list jobs that have ended.")
    ] = False,
    output: Annotated[
        OutputName, typer.Option("--output", "-o", help="Output format.")
    ] = OutputName.table,
) -> None:
    """List the jobs that are queued or running, or all jobs."""
    with one_line_errors():
        jobs = [job for job in JobStore.default().jobs() if everything or job.active]
        if output is OutputName.json:
            print(json.dumps([as_json(job) for job in jobs], indent=1))
        else:
            print(table(jobs, time.time()))


@app.command(epilog=CANCEL_EXAMPLES)
def cancel(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[job] ID", help="ID of the job; the word `job` may be left out."),
    ],
) -> None:
    """Stop a run: it writes a checkpoint and exits with code 143."""
    with one_line_errors():
        for name in _without_noun(words):
            JobStore.default().cancel(name)
            print("Job canceled successfully")


@app.command(epilog=LABEL_EXAMPLES)
def label(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[job] ID LABEL...",
            help="ID of the job, and labels: KEY=VALUE sets one, KEY- removes it.",
        ),
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
