"""The trials of a sweep: values by name, a function of the sweep file and of nothing else."""

import itertools
import math
from dataclasses import dataclass

from pipeline.core import rng
from trainer.sweep.config import Parameter, Scalar, SweepConfig

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
    """All trials, in order.

    Draw k of a parameter follows from (seed, its name, k): more samples, or another parameter,
    leave the other draws as they are.
    """
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
                name: draw(parameter, rng.generator(config.seed, "sweep", name, index).random())
                for name, parameter in config.parameters.items()
            },
        )
        for index in range(config.samples or 0)
    ]


def draw(parameter: Parameter, share: float) -> Scalar:
    """The value at `share`, in [0, 1), of what a parameter is drawn from; ranges to six digits.

    >>> draw(Parameter(log_uniform=(1e-4, 1e-2)), 0.5), draw(Parameter(values=(1, 2, 4)), 0.7)
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
