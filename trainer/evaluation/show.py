"""Tables of what was measured, for the terminal."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from pipeline import terminal
from trainer.evaluate import Evaluation
from trainer.evaluation.amounts import Amount


def print_losses(found: Evaluation) -> None:
    """One line a source, and one for all."""
    amounts = {**found.per_source, "all": found.total}
    has_bytes = found.total.bits_per_byte is not None
    has_reference = found.total.reference_loss is not None
    heads = ["source", "labels", "loss", "perplexity"]
    heads += ["bits/byte"] * has_bytes + [
        "reference tokens",
        "loss/reference token",
    ] * has_reference
    rows = [
        _loss_row(name, amount, has_bytes=has_bytes, has_reference=has_reference)
        for name, amount in amounts.items()
    ]
    print_table(heads, rows)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows of text, which may come from data; all columns but the first are numbers."""
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(terminal.format_cell, row))
    terminal.out.print(table)


def _loss_row(name: str, amount: Amount, *, has_bytes: bool, has_reference: bool) -> list[str]:
    row = [name, f"{amount.n_counted:,}", f"{amount.loss:.5f}", f"{amount.perplexity:.4g}"]
    if has_bytes:
        row.append(_number(amount.bits_per_byte))
    if has_reference:
        row += [f"{amount.reference_tokens:,}", _number(amount.reference_loss)]
    return row


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def print_scores(results: Mapping[str, Mapping[str, float | int | None]]) -> None:
    """Name -> (column -> value), one line a name."""
    heads = list(dict.fromkeys(key for row in results.values() for key in row))
    rows = [[name, *(_cell(row.get(head)) for head in heads)] for name, row in results.items()]
    print_table(["", *heads], rows)


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
