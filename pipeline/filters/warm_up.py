"""Compiles the kernels of the filters before the work begins, so that workers find them cached."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dedup.compiled import first_use
from pipeline.filters.rules import Filters, find_failures
from pipeline.filters.settings import C4Config, FiltersConfig, GopherConfig, GopherRepetitionConfig


def compile_first(say: Callable[[str], None]) -> None:
    """`warm_up`, and word of it, where nothing is compiled yet for this machine."""
    if first_use(Path(__file__).parent):
        say("compiling the kernels of the filters for this machine, once")
        warm_up()


def warm_up() -> None:
    """Run each kernel once, on a few words."""
    every = FiltersConfig(
        gopher=GopherConfig(), gopher_repetition=GopherRepetitionConfig(), c4=C4Config()
    )
    find_failures(pa.array(["One line.\n\nAnother one …"], pa.large_string()), Filters(every))
