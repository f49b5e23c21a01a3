"""A fitted law with its points, its 95 % band, and the paper's law and points beside it."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer.scaling.laws import loss_at
from trainer.scaling.paper_points import GROUPS
from trainer.scaling.power_law import PowerLaw, loss_intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
_MARKERS = dict(zip(GROUPS, "osv^D", strict=True))
_WIDER = 4.0
_CURVE_POINTS = 60


def draw(path: Path, law: PowerLaw) -> None:
    """Publish the plot as SVG or PNG, by the suffix of `path`; the same law gives the same bytes.

    Raises ConfigError for another suffix, or when matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot {path}: expected a name that ends in {' or '.join(FORMATS)}")
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter
    except ImportError as error:
        raise ConfigError(
            "a plot needs matplotlib: pip install 'wafermill[plot]', or leave out --plot"
        ) from error
    with mpl.rc_context({"svg.hashsalt": "wafermill"}):
        figure = Figure(figsize=(8, 5.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _curves(axes, law)
        _points(axes, law)
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs", ylabel="loss, nats per token")
        axes.yaxis.set_major_locator(MaxNLocator(8))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_title("Loss against training FLOPs; the paper's losses are of the Pile test set")
        axes.grid(visible=True, which="both", alpha=0.3)
        axes.legend(fontsize=8)
        image = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(image, format=path.suffix[1:], dpi=150, metadata=metadata)
    storage.publish(path, image.getvalue())


def _curves(axes: "Axes", law: PowerLaw) -> None:
    """The fit over its own FLOPs and some more, with its band; the paper's law over its own."""
    seen = [point.flops for point in law.points]
    own = np.geomspace(min(seen) / _WIDER, max(seen) * _WIDER, _CURVE_POINTS).tolist()
    label = f"fit: (f / {law.scale:.3g})^-{law.exponent:.4g} + {law.irreducible:.4g}"
    axes.plot(own, [law.loss(flops) for flops in own], color="C3", label=label)
    low, high = zip(*loss_intervals(law, own), strict=True)
    axes.fill_between(own, low, high, color="C3", alpha=0.15, label="95 % of the fit", linewidth=0)
    paper = [point.flops for group in GROUPS.values() for point in group]
    wide = np.geomspace(min(paper) / 2, max(paper) * 2, _CURVE_POINTS).tolist()
    axes.plot(wide, [loss_at(f) for f in wide], "k--", linewidth=1, label="Cerebras-GPT, eq 1")


def _points(axes: "Axes", law: PowerLaw) -> None:
    for name, group in GROUPS.items():
        flops, losses = [p.flops for p in group], [p.loss for p in group]
        axes.plot(
            flops, losses, _MARKERS[name], color="0.45", markersize=4, fillstyle="none", label=name
        )
    flops, losses = [p.flops for p in law.points], [p.loss for p in law.points]
    axes.plot(flops, losses, "o", color="C3", markersize=6, label="fitted runs")
