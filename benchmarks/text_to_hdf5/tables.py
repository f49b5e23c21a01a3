"""The tables of `end_to_end.py`. A figure is the median of the rounds, a ratio that of ratios."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.text_to_hdf5.contenders import OURS, PUBLISHED, Contender

if TYPE_CHECKING:
    from benchmarks.text_to_hdf5.end_to_end import Run
    from benchmarks.text_to_hdf5.inputs import Input

FLAT = 0.15
"""How far the cost of a megabyte may lie from that at 1x."""
_LEFT = {"contender", "does", "input", "stage"}

Figure = Callable[["Run"], float]


class Rounds:
    """The runs, found by contender and scale."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = {(run.contender, run.scale, run.round): run for run in runs}
        self.rounds = sorted({run.round for run in runs})
        self.scales = sorted({run.scale for run in runs if run.scale})

    def of(self, label: str, scale: int) -> list[Run]:
        """Those of all rounds, in order; empty when it took no part."""
        keys = ((label, scale, number) for number in self.rounds)
        return [self._runs[key] for key in keys if key in self._runs]

    def middle(self, label: str, scale: int, figure: Figure) -> float:
        return median(figure(run) for run in self.of(label, scale))

    def ratio(self, one: tuple[str, int], other: tuple[str, int], figure: Figure) -> float:
        """The figure of one over that of the other within each round."""
        pairs = zip(self.of(*one), self.of(*other), strict=False)
        return median(figure(a) / figure(b) for a, b in pairs)


def show(runs: list[Run], contenders: list[Contender], inputs: dict[int, Input]) -> None:
    """Print all tables that the runs have figures for."""
    rounds = Rounds(runs)
    labels = [c.label for c in contenders if any(rounds.of(c.label, s) for s in rounds.scales)]
    does = {c.label: c.does for c in contenders}
    ours = [c.label for c in contenders if c.package == OURS and c.label in labels]
    console = Console(width=160)
    console.print(_speed(rounds, labels, does, ours))
    for line in PUBLISHED:
        console.print(f"{line.label}: published, not measured here: {line.source}")
    console.print(_resources(rounds, labels))
    if len(rounds.scales) > 1:
        console.print(_cost(rounds, labels))
    for one, more in pairwise(ours):
        console.print(_scaling(rounds, one, more))
    for label in ours:
        console.print(_stages(rounds, label, inputs))


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _LEFT else "right")
    return table


def _speed(rounds: Rounds, labels: list[str], does: dict[str, str], ours: list[str]) -> Table:
    table = _table(
        "speed",
        "contender", "does", "input", "MB", "wall s", "CPU s", "MB/s", "MB/s/core", "ours / it",
        "start-up CPU s", "MB/s/core after",
    )  # fmt: skip
    for label in labels:
        for scale in rounds.scales:
            if not rounds.of(label, scale):
                continue

            def get(figure: Figure, label: str = label, scale: int = scale) -> float:
                return rounds.middle(label, scale, figure)

            ratio = "-"
            if ours and rounds.of(ours[0], scale):
                ratio = f"{rounds.ratio((label, scale), (ours[0], scale), _cost_per_mb):.2f}"
            table.add_row(
                label, does[label], f"{scale}x", f"{get(lambda r: r.megabytes):.1f}",
                f"{get(lambda r: r.wall):.1f}", f"{get(lambda r: r.cpu):.1f}",
                f"{get(lambda r: r.megabytes / r.wall):.2f}",
                f"{get(lambda r: r.megabytes / r.cpu):.2f}", ratio,
                f"{rounds.middle(label, 0, lambda r: r.cpu):.1f}", _after(rounds, label, scale),
            )  # fmt: skip
        table.add_section()
    for line in PUBLISHED:
        ratio = "-"
        if ours:
            rate = rounds.middle(ours[0], rounds.scales[-1], lambda r: r.megabytes / r.cpu)
            ratio = f"{rate / line.mb_per_core_s:.1f}"
        cells = [line.label, line.does, *[""] * 5, f"{line.mb_per_core_s:g}", ratio, "", ""]
        table.add_row(*cells, style="dim")
    return table


def _resources(rounds: Rounds, labels: list[str]) -> Table:
    table = _table(
        "memory, disk, output",
        "contender", "input", "MB", "largest process MB", "all processes MB", "disk at most MB",
        "product MB", "documents", "tokens",
    )  # fmt: skip
    for label in labels:
        for scale in rounds.scales:
            if not (runs := rounds.of(label, scale)):
                continue
            figures: list[Figure] = [
                lambda r: r.megabytes, lambda r: r.largest_rss_mb, lambda r: r.tree_rss_mb,
                lambda r: r.peak_disk_mb, lambda r: r.product_mb,
            ]  # fmt: skip
            table.add_row(
                label, f"{scale}x", *[f"{median(map(figure, runs)):.1f}" for figure in figures],
                f"{runs[0].documents:,}", f"{runs[0].tokens:,}",
            )  # fmt: skip
        table.add_section()
    return table


def _cpu(run: Run) -> float:
    return run.cpu


def _cost_per_mb(run: Run) -> float:
    return run.cpu / run.megabytes


def _cost_after(cpu: float, megabytes: float) -> Figure:
    """CPU seconds of a megabyte that comes on top of an input with so many."""
    return lambda run: (run.cpu - cpu) / (run.megabytes - megabytes)


def _after(rounds: Rounds, label: str, scale: int) -> str:
    """MB per CPU second of what comes on top of the tiny input."""
    pairs = zip(rounds.of(label, scale), rounds.of(label, 0), strict=False)
    rates = [(a.megabytes - b.megabytes) / max(a.cpu - b.cpu, 1e-9) for a, b in pairs]
    return f"{median(rates):.2f}"


def _cost(rounds: Rounds, labels: list[str]) -> Table:
    table = _table(
        f"cost of a megabyte as the input grows (flat: within {FLAT:.0%} of the smallest)",
        "contender", "input", "CPU ms/MB", "of smallest", "after start-up", "of smallest",
        "wall ms/MB", "of smallest", "tokens/MB",
    )  # fmt: skip
    for label in labels:
        scales = [scale for scale in rounds.scales if rounds.of(label, scale)]
        if len(scales) < 2:
            continue
        figures: list[Figure] = [
            _cost_per_mb,
            _cost_after(rounds.middle(label, 0, _cpu), rounds.of(label, 0)[0].megabytes),
            lambda r: r.wall / r.megabytes,
        ]
        for scale in scales:
            cells = []
            for figure in figures:
                cells.append(f"{1e3 * rounds.middle(label, scale, figure):.1f}")
                cells.append(f"{rounds.ratio((label, scale), (label, scales[0]), figure):.3f}")
            table.add_row(
                label, f"{scale}x", *cells,
                f"{rounds.middle(label, scale, lambda r: r.tokens / r.megabytes):,.0f}",
            )  # fmt: skip
        table.add_section()
    return table


def _scaling(rounds: Rounds, one: str, more: str) -> Table:
    table = _table(
        f"{one} against {more.rpartition(', ')[2]}",
        "input", "wall s of one", "wall s of more", "faster by", "CPU s more by",
    )  # fmt: skip
    for scale in rounds.scales:
        if not (rounds.of(one, scale) and rounds.of(more, scale)):
            continue
        table.add_row(
            f"{scale}x",
            f"{rounds.middle(one, scale, lambda r: r.wall):.1f}",
            f"{rounds.middle(more, scale, lambda r: r.wall):.1f}",
            f"{rounds.ratio((one, scale), (more, scale), lambda r: r.wall):.2f}",
            f"{rounds.ratio((more, scale), (one, scale), lambda r: r.cpu):.2f}",
        )
    return table


def _stages(rounds: Rounds, label: str, inputs: dict[int, Input]) -> Table:
    """Seconds on the wall of every stage, by the journal; the largest input."""
    scale = max(s for s in rounds.scales if rounds.of(label, s))
    runs, size = rounds.of(label, scale), inputs[scale].megabytes
    wall = median(run.wall for run in runs)
    table = _table(
        f"{label}: stages at {scale}x, {size:.1f} MB of text",
        "stage", "wall s", "share", "MB of work", "MB of work/s", "text MB/s",
    )  # fmt: skip
    seconds = {
        name: median(run.stages[name][0] for run in runs if name in run.stages)
        for name in runs[0].stages
    }
    for name, took in sorted(seconds.items(), key=lambda item: -item[1]):
        work = runs[0].stages[name][1] / 1e6
        rates = (f"{work:.1f}", f"{work / took:.1f}") if work and took else ("", "")
        table.add_row(name, f"{took:.2f}", f"{took / wall:.1%}", *rates, f"{size / took:.0f}")
    rest = wall - sum(seconds.values())
    table.add_row("start, end, between", f"{rest:.2f}", f"{rest / wall:.1%}", "", "", "")
    table.add_row("all", f"{wall:.2f}", "", "", "", f"{size / wall:.1f}", style="bold")
    return table
