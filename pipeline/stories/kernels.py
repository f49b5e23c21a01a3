"""The kernels that a run needs, compiled before its tasks on a machine that has none of them yet.

Compiling takes half a minute of one core, so each package's kernels are compiled in a process of
their own, beside each other. What cannot be compiled here, for want of memory or of a cache that
can be written, is compiled by the tasks that need it.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

from dedup.compiled import find_kernel_directory, first_use, is_writable
from dedup.presets import Preset
from pipeline.config.prep import Config
from pipeline.config.signals import SignalsConfig
from pipeline.engine.executor import main_replaced
from pipeline.filters.rules import has_rules
from pipeline.stories.selection import choose_preset

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    """Kernels, a module that has one of them, and what calls each of them once."""

    name: str
    module: str
    warm_up: Callable[[], None]

    @property
    def is_missing(self) -> bool:
        """Whether nothing of it is compiled yet, and what is compiled would be kept."""
        source = ROOT.joinpath(*self.module.split(".")).with_suffix(".py")
        directory = find_kernel_directory(source.parent)
        return directory is not None and first_use(source) and is_writable(directory)


def list_parts(config: Config, screens: bool, packs: bool) -> Iterator[Part]:
    """What this config needs, what takes longest first. screens, packs: documents are screened, and
    tokens are packed into shards."""
    if screens and config.screen.registry:
        yield FINGERPRINTS
    lines = config.lines.unit != "none" or config.dedup.substrings.cut
    overlap = bool(config.decontaminate.sets)
    contained, recipe = config.dedup.containment.drop, choose_preset(config.dedup)
    if recipe or lines or overlap:
        yield Part("dedup", "dedup.lsh", partial(_warm_up_dedup, recipe, lines, overlap, contained))
    if has_rules(config.filters) or config.signals != SignalsConfig():
        yield FILTERS
    if packs:
        yield SHARDS
    if screens:
        yield TITLES
    if config.clean.fix_text:
        yield CLEANING
    if screens:
        yield LITERALS


def compile_missing(parts: Sequence[Part], note: Callable[[str], None]) -> None:
    """Compile those of which nothing is compiled yet, and say so."""
    missing = [part for part in parts if part.is_missing]
    if not missing:
        return
    note(f"compiling kernels for this machine, once: {', '.join(part.name for part in missing)}")
    processes = min(len(os.sched_getaffinity(0)), len(missing))
    context = multiprocessing.get_context("spawn")
    with (
        contextlib.suppress(OSError, BrokenProcessPool),  # the tasks compile what they call
        main_replaced(),
        ProcessPoolExecutor(processes, context, _begin) as pool,
    ):
        for compiling in [pool.submit(part.warm_up) for part in missing]:
            compiling.result()


def _begin() -> None:
    """Leave without a word at Ctrl-C, and where the run was killed, as nobody else ends them then.
    Searches for cycles would take a seventh of the time, and save 200 MB."""
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _warm_up_dedup(
    recipe: Preset | None, lines: bool = True, overlap: bool = True, contained: bool = True
) -> None:
    from dedup.find import warm_up

    warm_up(recipe, lines=lines, overlap=overlap, containment=contained)


def _warm_up_cleaning() -> None:
    from pipeline.cleaning import clean_array, short_mask

    short_mask(clean_array(["schÃ¶n"]), 200)


def _warm_up_filters() -> None:
    from pipeline.filters.rules import warm_up_filters

    warm_up_filters()


def _warm_up_fingerprints() -> None:
    from pipeline.screening.fingerprints.find import warm_up_fingerprints

    warm_up_fingerprints()


def _warm_up_literals() -> None:
    from pipeline.screening.fingerprints.literals import warm_up_literals

    warm_up_literals()


def _warm_up_titles() -> None:
    from pipeline.screening.detectors.titles import warm_up_titles

    warm_up_titles()


def _warm_up_shards() -> None:
    import numpy as np
    import pyarrow as pa

    from pipeline.hdf5.chunks import shard_image
    from pipeline.hdf5.packing import SampleRows, take_rows

    shard_image(SampleRows(np.zeros((1, 17), np.uint16), np.array([17])))
    lists = pa.chunked_array([pa.array([[1, 2], [3]], pa.large_list(pa.uint16()))])
    take_rows(lists, np.array([1, 0]))


FINGERPRINTS = Part("fingerprints", "pipeline.screening.fingerprints.verify", _warm_up_fingerprints)
LITERALS = Part("identifiers", "pipeline.screening.fingerprints.literals", _warm_up_literals)
TITLES = Part("titles", "pipeline.screening.detectors.title_index", _warm_up_titles)
FILTERS = Part("filters", "pipeline.filters.repetition", _warm_up_filters)
SHARDS = Part("shards", "pipeline.hdf5.word_deflate", _warm_up_shards)
CLEANING = Part("cleaning", "pipeline.cleaning.scan", _warm_up_cleaning)
EVERY_PART = (
    Part("dedup", "dedup.lsh", partial(_warm_up_dedup, None)),
    FINGERPRINTS,
    FILTERS,
    SHARDS,
    TITLES,
    CLEANING,
    LITERALS,
)
"""The kernels of every package, preset and scheme, what takes longest first."""
