"""`prep plan` on the terminal: what is to do, what counts as a duplicate, and the forecast."""

from rich.table import Table

from pipeline.catalogue import STORIES
from pipeline.core.figures import format_bytes
from pipeline.core.words import pluralise
from pipeline.forecast import forecast, total_of
from pipeline.preparation import PREPARATION, Preparation, Story, describe_dedup
from pipeline.terminal import format_duration, out, print_json, print_line


def show_plan(prepared: Preparation, as_json: bool, story: Story = PREPARATION) -> None:
    """Print it, and last what all of it costs; nothing is written."""
    stages = forecast(prepared, story)
    if as_json:
        return print_json([vars(stage) for stage in stages])
    files, size = len(prepared.plan.files), format_bytes(prepared.plan.bytes)
    tasks = pluralise(len(prepared.plan.estimate), "task")
    print_line(f"{pluralise(files, 'raw shard')}, {size}, {tasks}; output {prepared.out}/")
    for note in prepared.plan.notes if STORIES[story.name].labels_sources else ():
        print_line(f"note: {note}")
    if story.name != "clean":
        print_line(describe_dedup(prepared.config.dedup))
    if "custom_filters" in (stage.stage for stage in stages):
        for own in prepared.screening.custom_filters:
            print_line(f"custom filter {own.describe()}")
    table = Table("stage", "state", "CPU time", "disk", "memory per worker")
    for s in stages:
        seconds = f"{s.cpu_seconds:,.0f} s"
        disk, memory = format_bytes(s.disk_bytes), format_bytes(s.memory_bytes)
        table.add_row(s.stage, s.state, seconds, disk, memory)
    total = total_of(stages, prepared)
    table.add_section()
    table.add_row(
        "total", "", f"{total.cpu_seconds:,.0f} s", format_bytes(total.disk_bytes),
        format_bytes(total.memory_bytes),
    )  # fmt: skip
    out.print(table, soft_wrap=True)
    where = pluralise(total.workers, "worker") if total.workers else "one process"
    memory = format_bytes(total.memory_bytes * max(1, total.workers))
    print_line(
        f"in all about {format_duration(total.seconds)} with {where}, {memory} of memory, "
        f"{format_bytes(total.disk_bytes)} of disk ({format_bytes(total.kept_bytes)} after "
        "prep clean-up)"
    )
