"""Coordinate check: do activations keep their size when a model is made wider?

Models of several widths, equal in all else, take a few steps on the same data; slopes of log |x| on
log width show how activations grow. In muP the residual stream and what attention adds to it keep
their size, in standard parametrization (SP) they grow with width once weights have moved. Method:
muP (arXiv 2203.03466) section D.1; parametrizations: Cerebras-GPT (arXiv 2304.03208) Table 14.
"""

import io
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from torch import Tensor

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer.commands.options import one_line_errors
from trainer.config import ModelConfig
from trainer.config.model_parameters import to_mup
from trainer.config.optimizer import find_optimizer_config
from trainer.model import GPT, optimizer
from trainer.model.decoder import Block
from trainer.recipe import MUP

Parametrization = Literal["mup", "sp"]
QUANTITIES = ("residual_stream", "attention", "feed_forward", "logits")

MUP_BOUNDS = {
    "residual_stream": (-0.1, 0.1),
    "attention": (-0.1, 0.1),
    "feed_forward": (-0.2, 0.1),
    "logits": (-0.6, 0.1),
}
"""Slopes that muP keeps to at all steps. Logits of a tied read-out shrink at first, by design."""

SP_LEAST_RESIDUAL = 0.5
"""Slope of the residual stream that SP reaches at the last step, at muP's learning rate."""


@dataclass(frozen=True, kw_only=True)
class CoordinateCheckPlan:
    """What is measured; the rest of the model is fixed. `widths`: hidden sizes, multiples of
    `head_width`. `seeds`: of weights and data. `steps`: steps after which activations are
    measured. `learning_rate`: of all models, without a schedule; muP divides it by m_width where
    Table 14 says so. `sequences`, `length`: of a batch, in tokens."""

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: tuple[int, ...] = (0, 10)
    base_width: int = 64
    head_width: int = 32
    layers: int = 2
    vocabulary: int = 64
    sequences: int = 8
    length: int = 32
    learning_rate: float = MUP.learning_rate

    def __post_init__(self) -> None:
        if len(set(self.widths)) < 2 or not self.seeds or not self.steps or min(self.steps) < 0:
            raise ConfigError(
                "--widths needs at least two widths, --seeds and --steps at least one value"
            )
        for width in (self.base_width, *self.widths):
            if width < 1 or width % self.head_width:
                raise ConfigError(
                    f"--widths {width}: expected a multiple of {self.head_width}, the width of a "
                    "head, which stays while heads are added"
                )


@dataclass(frozen=True, kw_only=True)
class CoordinateRecord:
    """Mean |x| of one quantity of one model after `step` updates, over tokens, units and layers."""

    parametrization: Parametrization
    width: int
    seed: int
    step: int
    quantity: str
    size: float


@dataclass(frozen=True)
class Slope:
    """Least-squares slope of log(mean size over seeds) on log(width)."""

    parametrization: Parametrization
    step: int
    quantity: str
    slope: float


def measure_coordinates(plan: CoordinateCheckPlan) -> Iterator[CoordinateRecord]:
    """Train every model of the plan, both parametrizations, and yield its records."""
    for seed in plan.seeds:
        for width in plan.widths:
            for kind in ("mup", "sp"):
                yield from _one(plan, kind, width, seed)


def make_model_config(plan: CoordinateCheckPlan, kind: Parametrization, width: int) -> ModelConfig:
    """A GPT-2-like decoder of this width, as in the paper."""
    plain = ModelConfig(
        vocab_size=plan.vocabulary,
        max_position_embeddings=plan.length,
        hidden_size=width,
        num_hidden_layers=plan.layers,
        num_heads=width // plan.head_width,
        filter_size=4 * width,
    )
    return to_mup(plain, plan.base_width) if kind == "mup" else plain


def slopes(records: Sequence[CoordinateRecord]) -> list[Slope]:
    """One per parametrization, step and quantity."""
    return [Slope(*group, _slope(sizes)) for group, sizes in _grouped(records).items()]


def broken_bounds(measured: Sequence[Slope]) -> list[str]:
    """A line for every slope that is not as the theory says; none: the check has passed."""
    last, lines = max(slope.step for slope in measured), []
    for at in measured:
        low, high = MUP_BOUNDS[at.quantity]
        if at.parametrization == "mup" and not low <= at.slope <= high:
            lines.append(f"muP {at.quantity} at step {at.step}: {at.slope:+.3f} not in {low, high}")
        grows = (at.parametrization, at.step, at.quantity) == ("sp", last, "residual_stream")
        if grows and last > 0 and at.slope < SP_LEAST_RESIDUAL:
            lines.append(f"SP {at.quantity} at step {last}: {at.slope:+.3f} < {SP_LEAST_RESIDUAL}")
    return lines


Sizes = dict[int, list[float]]  # by width, one per seed
Group = tuple[Parametrization, int, str]


def _grouped(records: Sequence[CoordinateRecord]) -> dict[Group, Sizes]:
    groups: dict[Group, Sizes] = {}
    for record in records:
        group = groups.setdefault((record.parametrization, record.step, record.quantity), {})
        group.setdefault(record.width, []).append(record.size)
    return groups


def _means(sizes: Sizes) -> list[float]:
    return [statistics.fmean(of_seeds) for of_seeds in sizes.values()]


def _slope(sizes: Sizes) -> float:
    logs = [math.log(mean) for mean in _means(sizes)]
    return statistics.linear_regression([math.log(width) for width in sizes], logs).slope


def _one(
    plan: CoordinateCheckPlan, kind: Parametrization, width: int, seed: int
) -> Iterator[CoordinateRecord]:
    config = make_model_config(plan, kind, width)
    model = GPT(config, seed)
    rule = find_optimizer_config("AdamW")(optimizer_type="AdamW", learning_rate=plan.learning_rate)
    adam = optimizer.build_optimizer(dict(model.named_parameters()), rule, config)
    for group in adam.param_groups:
        group["lr"] = plan.learning_rate * group["adjust_learning_rate"]
    for step in range(max(plan.steps) + 1):
        batch = _batch(plan, seed, step)
        if step in plan.steps:
            for quantity, size in _sizes(model, batch["input_ids"]).items():
                yield CoordinateRecord(
                    parametrization=kind,
                    width=width,
                    seed=seed,
                    step=step,
                    quantity=quantity,
                    size=size,
                )
        if step == max(plan.steps):
            return
        loss_sum, counted = model(batch)
        adam.zero_grad()
        (loss_sum / counted).backward()
        adam.step()


def _batch(plan: CoordinateCheckPlan, seed: int, step: int) -> dict[str, Tensor]:
    """Rows in which the next token mostly is the last one plus 1, the same for every width."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    shape = (plan.sequences, plan.length + 1)
    strides = torch.tensor([1] * 8 + [2, 7])
    tokens = strides[torch.randint(0, len(strides), shape, generator=generator)].cumsum(1)
    start = torch.randint(0, plan.vocabulary, (plan.sequences, 1), generator=generator)
    tokens = (tokens + start) % plan.vocabulary
    mask = torch.ones(plan.sequences, plan.length, dtype=torch.long)
    return {"input_ids": tokens[:, :-1], "attention_mask": mask, "labels": tokens[:, 1:]}


def _sizes(model: GPT, input_ids_BS: Tensor) -> dict[str, float]:
    """Mean |x| of every quantity; of those that each block has, the mean over blocks."""
    seen: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    handles = []
    for block in model.blocks:
        assert isinstance(block, Block)
        modules = {"attention": block.attention, "feed_forward": block.feed_forward}
        for name, module in {"residual_stream": block, **modules}.items():

            def note(_: Any, inputs: Any, output: Tensor, sizes: list[float] = seen[name]) -> None:
                sizes.append(float(output.abs().mean()))

            handles.append(module.register_forward_hook(note))
    with torch.no_grad():
        seen["logits"].append(float(model.logits(input_ids_BS).abs().mean()))
    for handle in handles:
        handle.remove()
    return {name: statistics.fmean(sizes) for name, sizes in seen.items()}


def plot(records: Sequence[CoordinateRecord]) -> bytes:
    """A PNG: a panel per parametrization and quantity, a line per step, mean over seeds."""
    from matplotlib.figure import Figure  # here: only this function needs the library

    figure = Figure(figsize=(14, 6), layout="constrained")
    panels = figure.subplots(2, len(QUANTITIES), sharex=True)
    for row, kind in zip(panels, ("sp", "mup"), strict=True):
        for panel, quantity in zip(row, QUANTITIES, strict=True):
            name = "SP" if kind == "sp" else "muP"
            panel.set_title(f"{name}: {quantity.replace('_', ' ')}")
            panel.set_xlabel("width")
            panel.set_ylabel("mean |x|")
            chosen = [r for r in records if (r.parametrization, r.quantity) == (kind, quantity)]
            for (_, step, _), sizes in _grouped(chosen).items():
                label = f"step {step}: slope {_slope(sizes):+.2f}"
                panel.loglog(list(sizes), _means(sizes), marker="o", label=label)
            panel.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100, metadata={"Software": None})
    return image.getvalue()


def main(
    out: Annotated[
        Path, typer.Option(help="Directory for coordinate_check.json and coordinate_check.png.")
    ],
    widths: Annotated[
        str, typer.Option(help="Hidden sizes, separated by commas.")
    ] = "64,128,256,512,1024",
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds for weights and data: 0, 1, ...")
    ] = 3,
    steps: Annotated[
        str, typer.Option(help="Updates after which to measure, separated by commas.")
    ] = "0,10",
) -> None:
    """Measure how activations grow with width, in muP and in standard parametrization.

    Example, which takes about a minute on one core:

        python -m trainer.coordinate_check --out coordinates

    A smaller one, which takes seconds:

        python -m trainer.coordinate_check --out coordinates --widths 64,128,256 --seeds 1

    Exit codes: 0 when all slopes agree with the theory, 1 when one does not.
    """
    with one_line_errors():
        plan = CoordinateCheckPlan(
            widths=_integers("--widths", widths),
            seeds=tuple(range(seeds)),
            steps=_integers("--steps", steps),
        )
        records = list(measure_coordinates(plan))
        measured = slopes(records)
        broken = broken_bounds(measured)
        table = {
            "plan": asdict(plan),
            "records": [asdict(record) for record in records],
            "slopes": [asdict(slope) for slope in measured],
            "broken_bounds": broken,
        }
        storage.write_json(out / "coordinate_check.json", table)
        storage.publish(out / "coordinate_check.png", plot(records))
    for at in measured:
        typer.echo(f"{at.parametrization:<4} step {at.step:<3} {at.quantity:<16} {at.slope:+.3f}")
    for line in broken:
        typer.echo(f"not as expected: {line}", err=True)
    raise typer.Exit(1 if broken else 0)


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} {text}: expected integers separated by commas") from None


if __name__ == "__main__":
    typer.run(main)
