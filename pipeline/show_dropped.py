"""`prep inspect --dropped` on the terminal."""

from rich.table import Table

from pipeline.core.figures import format_bytes
from pipeline.core.words import pluralise
from pipeline.provenance.dropped import DroppedRecords
from pipeline.provenance.records import describe_place
from pipeline.show_explanation import evidence_line
from pipeline.terminal import format_cell, out, print_line


def show_dropped(found: DroppedRecords) -> None:
    """What left for a reason, by source, then the first records with their evidence."""
    print_line(
        f"{found.reason}: {pluralise(found.total, 'record')}, {format_bytes(found.bytes)} of text"
    )
    if found.failed:
        print_line(
            f"the rule matched {pluralise(found.failed, 'document')}, including those that left "
            "for another reason or were kept"
        )
    table = Table("source")
    table.add_column("records", justify="right")
    for source, count in found.by_source.items():
        table.add_row(format_cell(source), f"{count:,}")
    if found.by_source:
        out.print(table, soft_wrap=True)
    for record in found.records:
        print_line(
            f"{record.place.key}  {describe_place(record.place, '')}  "
            f"{pluralise(record.text_bytes, 'byte')}"
        )
        for evidence in record.evidence:
            print_line(f"    {evidence_line(evidence)}")
        print_line(f"    {' '.join(record.excerpt.split())[:160]}")
    more = found.total - len(found.records)
    if more > 0:
        print_line(f"and {more:,} more; --top N lists more")
