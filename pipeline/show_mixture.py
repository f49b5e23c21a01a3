"""What a mixture made of every source, on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from pipeline.terminal import format_cell, out


def show_mixture(mixture: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the section `mixture` of ledger.json; nothing for an empty one."""
    if not mixture:
        return
    total = sum(row["stream_tokens"] for row in mixture.values())
    by_share = any(row["asked_share"] is not None for row in mixture.values())
    table = Table("source", title="mixture of the training split")
    asked = "share requested" if by_share else "epochs requested"
    for name in ("documents", "tokens", asked, "epochs", "in the stream", "tokens there", "share"):
        table.add_column(name, justify="right")
    for source, row in mixture.items():
        wanted = f"{row['asked_share']:.2%}" if by_share else f"{row['asked_epochs']:g}"
        table.add_row(
            format_cell(source), f"{row['documents']:,}", f"{row['tokens']:,}", wanted,
            f"{row['epochs']:.4g}", f"{row['stream_documents']:,}", f"{row['stream_tokens']:,}",
            f"{row['stream_tokens'] / total:.2%}" if total else "-",
        )  # fmt: skip
    out.print(table, soft_wrap=True)
