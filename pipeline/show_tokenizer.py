"""`prep tokenizer` on the terminal: how well tokenizers fit each source."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from pipeline.terminal import format_cell, out
from pipeline.tokenizer_training import TokenizerMeasurement

__all__ = ["show_fertility"]


def show_fertility(measured: Sequence[TokenizerMeasurement], as_json: bool) -> None:
    """Print a table with a row per source, and columns for each tokenizer."""
    if as_json:
        return out.print_json(json.dumps([_as_json(one) for one in measured]))
    table = Table("source", "documents", "MB", title_justify="left", title="bytes per token (more "
                  "is better), tokens per word (fewer is better)")  # fmt: skip
    for one in measured:
        heading = f"{Path(one.tokenizer).name} ({one.vocab_size:,})"
        table.add_column(f"{format_cell(heading)}\nbytes/token", justify="right", no_wrap=True)
        table.add_column("\ntokens/word", justify="right", no_wrap=True)
    for rows in zip(*(one.rows for one in measured), strict=True):
        cells = [rows[0].source, f"{rows[0].documents:,}", f"{rows[0].text_bytes / 1e6:.2f}"]
        for row in rows:
            cells += [f"{row.bytes_per_token:.2f}", f"{row.tokens_per_word:.2f}"]
        table.add_row(*map(format_cell, cells))
    out.print(table)
    for one in measured:
        out.print(f"{one.tokenizer}: tokenized by {one.engine}", markup=False)
    return None


def _as_json(one: TokenizerMeasurement) -> dict[str, object]:
    rows = [
        {**asdict(r), "bytes_per_token": r.bytes_per_token, "tokens_per_word": r.tokens_per_word}
        for r in one.rows
    ]
    return {**asdict(one), "rows": rows}
