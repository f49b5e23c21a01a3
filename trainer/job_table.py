"""The table of `train jobs get`."""

from collections.abc import Sequence

from trainer.job_store import Job

HEAD = ("NAME", "AGE", "DURATION", "PHASE", "SYSTEMS", "USER", "LABELS")


def table(jobs: Sequence[Job], now: float) -> str:
    """Aligned columns, a line per job; `now` in seconds since 1970 UTC."""
    if not jobs:
        return "No jobs found"
    rows = [HEAD, *(_row(job, now) for job in jobs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def _row(job: Job, now: float) -> tuple[str, ...]:
    labels = ",".join(f"{key}={value}" for key, value in sorted(job.labels.items()))
    systems = str(job.systems) if job.systems else "-"
    age = short_time(now - job.created)
    return job.name, age, _duration(job, now), job.phase, systems, job.user, labels


def _duration(job: Job, now: float) -> str:
    """Time since it began to run; unknown ("-") before, and when nobody saw it end."""
    if job.started is None:
        return "-"
    if job.ended is not None:
        return short_time(job.ended - job.started)
    return short_time(now - job.started) if job.active else "-"


def short_time(seconds: float) -> str:
    """A length of time in its two largest units.

    >>> [short_time(s) for s in (-1, 59.9, 257, 18_720, 273_600)]
    ['0s', '59s', '4m17s', '5h12m', '3d4h']
    """
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600, whole // 60
    if days:
        return f"{days}d{hours % 24}h"
    if hours:
        return f"{hours}h{minutes % 60}m"
    return f"{minutes}m{whole % 60}s" if minutes else f"{whole}s"
