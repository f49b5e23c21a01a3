"""`train jobs`, `train report`, `train card` and `train track`: what runs there are, pages about
one, and its metrics for others. Options, one call each, and the table of jobs.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from pipeline.core.words import format_duration
from trainer.commands.options import describe_command, make_registration, one_line_errors
from trainer.runs.jobs import Job, JobStore, current_user, job_to_json, parse_labels

HEAD = ("NAME", "AGE", "DURATION", "PHASE", "SYSTEMS", "USER", "LABELS")


def format_jobs(jobs: Sequence[Job], now: float) -> str:
    """Aligned columns, a line per job; `now` in seconds since 1970 UTC."""
    if not jobs:
        return "No jobs found"
    rows = [HEAD]
    for job in jobs:
        labels = ",".join(f"{key}={value}" for key, value in sorted(job.labels.items()))
        systems = str(job.systems) if job.systems else "-"
        end = now if job.ended is None and job.active else job.ended
        duration = "-"  # before it began to run, and when nobody saw it end
        if job.started is not None and end is not None:
            duration = format_duration(end - job.started)
        age = format_duration(now - job.created)
        rows.append((job.name, age, duration, str(job.phase), systems, job.user, labels))
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


EXAMPLES = """\b
Examples:
  train jobs
  train jobs get --all-states
  train jobs cancel job wsjob-000001

\b
The list is kept in $WAFERMILL_JOBS; if it is not set, in wafermill/jobs of the cache directory.
"""

jobs = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="List your runs on this machine, in every state; list all runs, cancel and label them.",
    epilog=EXAMPLES,
)


@jobs.callback()
def own(context: typer.Context) -> None:
    """`train jobs` alone."""
    if context.invoked_subcommand is None:
        with one_line_errors():
            mine = [job for job in JobStore.default().jobs() if job.user == current_user()]
            print(format_jobs(mine, time.time()))


def get(
    everything: Annotated[
        bool, typer.Option("--all-states", "-a", help="Also list jobs that have ended.")
    ] = False,
    output: Annotated[
        Literal["table", "json"], typer.Option("--output", "-o", help="Output format.")
    ] = "table",
) -> None:
    """List the jobs that are queued or running, or all jobs.

    Examples:
      train jobs get
      train jobs get -a -o json
    """
    with one_line_errors():
        listed = [job for job in JobStore.default().jobs() if everything or job.active]
        if output == "json":
            print(json.dumps([job_to_json(job) for job in listed], indent=1))
        else:
            print(format_jobs(listed, time.time()))


def cancel(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[job] ID", help="ID of the job; the word `job` may be left out."),
    ],
) -> None:
    """Stop a run: it writes a checkpoint and exits with code 143.

    Example:
      train jobs cancel job wsjob-000001
    """
    with one_line_errors():
        for name in _without_noun(words):
            JobStore.default().cancel(name)
            print("Job canceled successfully")


def label(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[job] ID LABEL...",
            help="ID of the job, and labels: KEY=VALUE sets one, KEY- removes it.",
        ),
    ],
) -> None:
    """Set and remove labels of a job.

    Example:
      train jobs label job wsjob-000001 team=nlp old-
    """
    with one_line_errors():
        name, *labels = _without_noun(words)
        JobStore.default().label(name, parse_labels(labels, removals=True))
        print(f"{name} labeled")


for _command in (get, cancel, label):
    describe_command(jobs, _command)


def _without_noun(words: list[str]) -> list[str]:
    """`csctl cancel job ID` names the kind of thing first; here it may be left out."""
    return words[1:] if words[0] == "job" and len(words) > 1 else words


_ModelDir = Annotated[
    Path, typer.Argument(metavar="MODEL_DIR", help="Directory of a training run.")
]
_Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data",
        metavar="RUN",
        help="A prep run the model was trained on, or a directory of shards; may be repeated.",
    ),
]


def report(model_dir: _ModelDir, data: _Data = None) -> None:
    """Write the training report, MODEL_DIR/report.html.

    Examples:
      train report out
      train report out --data runs/pile

    The page works offline: losses, learning rate, stability, data read by source, config, hashes.
    Without --data, the prep runs of the last report are read again.
    """
    from trainer.report.write import write_report

    with one_line_errors():
        print(write_report(model_dir, data or ()))


def card(model_dir: _ModelDir, out: Path | None = None, data: _Data = None) -> None:
    """Write a model card in Markdown.

    --out: File to write. [default: MODEL_DIR/README.md]

    Examples:
      train card out --data runs/pile
      train card out --out exported/README.md

    The card states only what the files of the run record; the rest is marked as unknown, for you to
    complete.
    """
    from trainer.report.write import write_card

    with one_line_errors():
        print(write_card(model_dir, out, data or ()))


def track(
    model_dir: _ModelDir,
    to: Literal["wandb", "mlflow"],
    project: str = "wafermill",
    name: str | None = None,
    offline: bool = False,
    uri: str | None = None,
    follow: bool = False,
) -> None:
    """Send the metrics of a training run to Weights & Biases or MLflow.

    --to: Where to; its package has to be installed.
    --project: Project of W&B, experiment of MLflow.
    --name: Name of the run. [default: that of MODEL_DIR]
    --offline: W&B: write files for `wandb sync`, and use no network.
    --uri: MLflow: its store. [default: sqlite, MODEL_DIR/mlflow.db]
    --follow: Go on until training ends.

    Examples:
      train track out --to wandb --offline
      train track out --to mlflow --uri http://localhost:5000 --follow

    Lines that were sent are not sent again. Training itself uses no network.
    """
    from trainer.report.track import TrackOptions, send_metrics

    with one_line_errors():
        options = TrackOptions(
            to=to, project=project, name=name, offline=offline, uri=uri, follow=follow
        )
        send_metrics(model_dir, options, print)


register = make_registration(report, card, track, jobs=jobs)
