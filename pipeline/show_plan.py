"""`prep plan` on the terminal: what is to do, what counts as a duplicate, and the forecast."""

from rich.table import Table

from pipeline.forecast import forecast
from pipeline.preparation import LABELLED, PREPARATION, Prepared, Story, describe_dedup
from pipeline.terminal import out, print_json, print_line, readable_bytes


def show_plan(prepared: Prepared, as_json: bool, story: Story = PREPARATION) -> None:
    """Print it; nothing is written."""
    stages = forecast(prepared, story)
    if as_json:
        return print_json([vars(stage) for stage in stages])
    files, size = len(prepared.plan.files), readable_bytes(prepared.plan.bytes)
    tasks = len(prepared.plan.estimate)
    print_line(f"{files} raw shards, {size}, {tasks} tasks; output {prepared.out}/")
    for note in prepared.plan.notes if story.name in LABELLED else ():
        print_line(f"note: {note}")
    if story.name != "clean":
        print_line(describe_dedup(prepared.config.dedup))
    table = Table("stage", "state", "CPU time", "disk", "memory per worker")
    for s in stages:
        seconds = f"{s.cpu_seconds:,.0f} s"
        disk, memory = readable_bytes(s.disk_bytes), readable_bytes(s.memory_bytes)
        table.add_row(s.stage, s.state, seconds, disk, memory)
    return out.print(table, soft_wrap=True)
