"""A sweep file: which run is varied, over what, how often; and its trials, values by name, a
function of the sweep file and of nothing else.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config import yaml
from pipeline.config.model import FrozenModel, parse
from pipeline.config.yaml import YamlDocument
from pipeline.core import rng
from pipeline.core.shipped import find_config
from trainer.config.model import Count

Scalar = bool | int | float | str
Range = tuple[float, float]
File = Annotated[Path, Field(strict=False)]

LEARNING_RATE = "learning_rate"
INITIALIZER_STD = "initializer_std"
EMBEDDINGS_SCALE = "embeddings_scale"
NAMED = {
    LEARNING_RATE: "eta, the peak: all rates of the schedule are scaled to it",
    INITIALIZER_STD: "sigma, of all weights: other initializers keep their ratio to it",
    EMBEDDINGS_SCALE: "m_emb",
}
"""Parameters with a name of their own; others are named by their dotted key of params.yaml."""


class Parameter(FrozenModel):
    """What one parameter is drawn from; exactly one key."""

    values: tuple[Scalar, ...] | None = Field(
        None, description="the values to try, such as [0.1, 0.2]"
    )
    uniform: Range | None = Field(None, description="[low, high]: every value is equally likely")
    log_uniform: Range | None = Field(
        None, description="[low, high] above 0: every factor is equally likely"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> "Parameter":
        names = [name for name, value in self if value is not None]
        if len(names) != 1:
            raise ValueError("expected one of values, uniform and log_uniform")
        if self.values is not None and not self.values:
            raise ValueError("values: expected one or more")
        for name in ("uniform", "log_uniform"):
            limits: Range | None = getattr(self, name)
            if limits is None:
                continue
            if not limits[0] < limits[1]:
                raise ValueError(f"{name}: expected [low, high] with low < high")
            if name == "log_uniform" and limits[0] <= 0:
                raise ValueError("log_uniform: expected limits above 0")
        return self

    def describe(self) -> str:
        """The values, or the range and how it is drawn from."""
        if self.values is not None:
            return ", ".join(str(value) for value in self.values)
        low, high = self.uniform or self.log_uniform or (0.0, 0.0)
        return f"{low:g} to {high:g}, {'log-' if self.log_uniform else ''}uniform"

    @property
    def is_logarithmic(self) -> bool:
        """Whether factors count, not differences; of values, when they span a factor of 4."""
        if self.values is None:
            return self.log_uniform is not None
        numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        return (
            len(numbers) == len(self.values)
            and min(numbers) > 0
            and max(numbers) >= 4 * min(numbers)
        )


_LENGTHS = {f"runconfig.{key}" for key in ("max_steps", "num_steps", "num_epochs", "max_epochs")}


class SweepConfig(FrozenModel):
    """A whole sweep file."""

    params: File = Field(description="params.yaml of the run that is varied, or a shipped name")
    set: dict[str, Any] = Field(
        {}, description="values that replace those of params, by dotted key"
    )
    target: Literal["CSX", "CPU", "GPU"] = Field("CSX", description="target that trials run on")
    data: File | None = Field(
        None,
        description="as for --data of train: a prep run, or a prep config that is run first; null: "
        "data_dir of params",
    )
    steps: Count | None = Field(
        None, description="steps of a trial; null: runconfig.max_steps of params"
    )
    method: Literal["random", "grid"] = Field(
        "random", description="grid: every combination of values"
    )
    samples: Count | None = Field(None, description="trials of a random search")
    seed: int = Field(
        1,
        ge=0,
        description="seed of the random values; with more samples, the earlier ones stay the same",
    )
    keep_checkpoints: Literal["best", "all"] = Field(
        "best", description="best: checkpoints of other finished trials are deleted"
    )
    parameters: dict[str, Parameter] = Field(
        description="what to vary: learning_rate, initializer_std, embeddings_scale, or a dotted "
        "key of params.yaml"
    )

    @model_validator(mode="after")
    def _possible(self) -> "SweepConfig":
        if not self.parameters:
            raise ValueError("parameters: expected one or more")
        both = sorted(self.set.keys() & self.parameters.keys())
        if both:
            raise ValueError(f"{both[0]} is in both set and parameters; remove it from one")
        idle = self.parameters.keys() | (self.set.keys() if self.steps else ())
        if lengths := sorted(_LENGTHS & idle):
            raise ValueError(f"{lengths[0]} has no effect here: all trials run `steps` steps")
        if self.method == "random" and self.samples is None:
            raise ValueError("method: random needs samples")
        if self.method == "grid":
            if self.samples is not None:
                raise ValueError(
                    "samples is for method: random; leave it out, because a grid runs every "
                    "combination"
                )
            for name, parameter in self.parameters.items():
                if parameter.values is None:
                    raise ValueError(f"method: grid needs values for {name}, not a range")
        return self


def load_sweep(path: Path) -> tuple[SweepConfig, YamlDocument]:
    """A sweep file, or the shipped one of a bare name such as `tiny`; with the lines of its
    keys. `params` may be relative to the file. Raises ConfigError, a line `FILE:LINE: key: …`."""
    file = find_config("sweep", path)
    loaded = yaml.load_yaml(file)
    config = parse(SweepConfig, loaded)
    beside = file.parent / config.params
    return config.model_copy(update={"params": beside}) if beside.is_file() else config, loaded


_DIGITS = 6


@dataclass(frozen=True)
class Trial:
    """One combination of values; `index` from 0."""

    index: int
    values: dict[str, Scalar]

    @property
    def name(self) -> str:
        """The name of its directory.

        >>> Trial(7, {}).name
        '0007'
        """
        return f"{self.index:04d}"


def trials(config: SweepConfig) -> list[Trial]:
    """All trials, in order. Draw k of a parameter follows from (seed, its name, k): more
    samples, or another parameter, leave the other draws as they are."""
    if config.method == "grid":
        lists = [parameter.values or () for parameter in config.parameters.values()]
        rows = itertools.product(*lists)
        return [
            Trial(index, dict(zip(config.parameters, row, strict=True)))
            for index, row in enumerate(rows)
        ]
    return [
        Trial(
            index,
            {
                name: pick(parameter, rng.generator(config.seed, "sweep", name, index).random())
                for name, parameter in config.parameters.items()
            },
        )
        for index in range(config.samples or 0)
    ]


def pick(parameter: Parameter, share: float) -> Scalar:
    """The value at `share`, in [0, 1), of what a parameter is drawn from; ranges to six digits.

    >>> pick(Parameter(log_uniform=(1e-4, 1e-2)), 0.5), pick(Parameter(values=(1, 2, 4)), 0.7)
    (0.001, 4)
    """
    if parameter.values is not None:
        return parameter.values[int(share * len(parameter.values))]
    if parameter.uniform is not None:
        low, high = parameter.uniform
        value = low + share * (high - low)
    else:
        assert parameter.log_uniform is not None, "one of the three is given"
        low, high = parameter.log_uniform
        value = low * math.exp(share * math.log(high / low))
    return min(high, max(low, float(f"{value:.{_DIGITS}g}")))
