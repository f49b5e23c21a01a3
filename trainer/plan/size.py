"""A shape for a number of parameters, the number of parameters for a budget, and the model that is
cheapest to train and to use for a given loss (equation 2 of Cerebras-GPT, arXiv 2304.03208).

Shape rule (ours, from the paper's aspect ratios): width over layers is interpolated between the
rows of Table 1, linear in the logarithms of parameters. The filter is four widths. A width is a
multiple of 64, below 1,024 of 32, below 256 of 16, below 128 of 8. Heads are 64 units wide, 128
from the width of 590M up, less where 64 does not divide the width. Of all widths and numbers of
layers within `TOLERANCE` of the wanted parameters, the pair nearest to parameters and ratio is
taken.
"""

import bisect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.core.errors import ConfigError
from trainer import recipe
from trainer.recipe import FAMILY, SEQUENCE_LENGTH, TOKENS_PER_PARAMETER
from wafer_backend.performance_model import shape as flops
from wafer_backend.performance_model.shape import GPTShape

VOCABULARY = 50257
"""GPT-2's, as in Table 1."""

TOLERANCE = 0.03
"""Share by which the parameters of a suggested shape may miss the wanted ones."""

_SNAP = 0.02
_RATIO_WEIGHT = 0.1
_MOST_RATIO = 4.0
_STEPS = ((128, 8), (256, 16), (1024, 32), (math.inf, 64))
_LEAST_WIDTH = 16
_SIZES = [m.shape.parameters for m in FAMILY.values()]
_RATIOS = [m.shape.width / m.shape.layers for m in FAMILY.values()]
_LOG_SIZES = [math.log(size) for size in _SIZES]


def _logarithms(count: Callable[[GPTShape], int]) -> list[float]:
    return [math.log(count(m.shape) / SEQUENCE_LENGTH) for m in FAMILY.values()]


_TRAINING = _logarithms(flops.training_flops_per_sequence)
_INFERENCE = _logarithms(flops.inference_flops_per_sequence)
_LEAST_SIZE, _MOST_SIZE = 1e5, 1e14


def shape_for(
    parameters: float, vocabulary: int = VOCABULARY, sequence_length: int = SEQUENCE_LENGTH
) -> GPTShape:
    """The row of Table 1 within 2 % of `parameters`, else a shape by the rule above.

    Raises ConfigError when no shape comes within `TOLERANCE`, such as for fewer parameters than the
    embeddings need.

    >>> shape_for(111e6).layers, shape_for(400e6).width
    (10, 1280)
    """
    if (vocabulary, sequence_length) == (VOCABULARY, SEQUENCE_LENGTH):
        for member in FAMILY.values():
            if abs(member.shape.parameters / parameters - 1) <= _SNAP:
                return member.shape
    near = [
        shape
        for shape in _candidates(parameters, vocabulary, sequence_length)
        if abs(shape.parameters / parameters - 1) <= TOLERANCE
    ]
    if not near:
        least = flops.parameters_of(_shape(_LEAST_WIDTH, 1, vocabulary, sequence_length))
        raise ConfigError(
            f"{parameters:,.0f} parameters: no shape of the paper's proportions comes within "
            f"{TOLERANCE:.0%}; with a vocabulary of {vocabulary:,} and {sequence_length:,} "
            f"positions the smallest shape has {least:,}: choose another number"
        )

    def distance(shape: GPTShape) -> float:
        ratio = math.log(shape.width / shape.layers / ratio_for(parameters))
        return abs(math.log(shape.parameters / parameters)) + _RATIO_WEIGHT * abs(ratio)

    return min(near, key=distance)


def ratio_for(parameters: float) -> float:
    """Width over layers of the shape rule.

    >>> ratio_for(111e6) < ratio_for(3e9) < ratio_for(1e11)
    True
    """
    return float(np.exp(np.interp(math.log(parameters), np.log(_SIZES), np.log(_RATIOS))))


def _candidates(parameters: float, vocabulary: int, sequence_length: int) -> Iterator[GPTShape]:
    """For every width the two numbers of layers around the wanted parameters."""
    width, ratio = _LEAST_WIDTH, ratio_for(parameters)
    embeddings, most = vocabulary + sequence_length, (1 + TOLERANCE) * parameters
    while embeddings * width + 12 * width**2 < most:
        layers = max(1, math.floor((parameters - embeddings * width) / (12 * width**2)))
        for count in (layers, layers + 1):
            if 1 / _MOST_RATIO <= width / count / ratio <= _MOST_RATIO:
                yield _shape(width, count, vocabulary, sequence_length)
        width += next(step for limit, step in _STEPS if width < limit)


def _shape(width: int, layers: int, vocabulary: int, sequence_length: int) -> GPTShape:
    return GPTShape(
        layers=layers,
        width=width,
        heads=width // _head(width),
        filter=4 * width,
        vocabulary=vocabulary,
        sequence_length=sequence_length,
    )


def _head(width: int) -> int:
    """Units of a head: 128 from the width of 590M up and 64 below, or what divides the width.

    >>> [_head(width) for width in (5120, 1088, 320, 48, 88)]
    [128, 64, 64, 16, 8]
    """
    first = 128 if width >= FAMILY["590M"].shape.width else 64
    return next(head for head in (first, 64, 32, 16, 8) if width % head == 0)


def training_flops_per_token(parameters: float) -> float:
    """Training FLOPs per token of a model of the family, MSL 2048; between the rows of Table 1
    linear in the logarithms (ours)."""
    return _per_token(parameters, _TRAINING)


def _per_token(parameters: float, logarithms: list[float]) -> float:
    """Log-log through the seven models; beyond them the end's slope goes on."""
    at = math.log(parameters)
    i = min(max(bisect.bisect_left(_LOG_SIZES, at), 1), len(_LOG_SIZES) - 1)
    share = (at - _LOG_SIZES[i - 1]) / (_LOG_SIZES[i] - _LOG_SIZES[i - 1])
    return math.exp(logarithms[i - 1] + share * (logarithms[i] - logarithms[i - 1]))


def parameters_for_flops(budget: float) -> float:
    """Parameters that train on 20 tokens each with a budget of FLOPs. Raises ConfigError outside
    1e5 to 1e14 parameters."""
    each = TOKENS_PER_PARAMETER
    return _inverse(lambda n: training_flops_per_token(n) * each * n, budget)


def parameters_for_run(budget: float, tokens: float) -> float:
    """Parameters that a budget of FLOPs trains on `tokens`. Raises ConfigError as above."""
    return _inverse(lambda n: training_flops_per_token(n) * tokens, budget)


def _inverse(rising: Callable[[float], float], value: float) -> float:
    low, high = math.log(_LEAST_SIZE), math.log(_MOST_SIZE)
    if not rising(math.exp(low)) <= value <= rising(math.exp(high)):
        raise ConfigError(
            f"{value:.3g} FLOPs: outside what models of 100K to 100T parameters would train with"
        )
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(math.exp(middle)) < value else (low, middle)
    return math.exp(low)


_MOST_TOKENS_PER_PARAMETER = 4284.0
"""The largest that eq 4 was read at in the paper."""

_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class ModelUse:
    """A model with the FLOPs of its training and of its use. `tokens`: trained on."""

    parameters: float
    tokens: float
    tokens_per_parameter: float
    training_flops: float
    inference_flops: float
    total_flops: float


def optimum(loss: float, inference_tokens: float) -> ModelUse | None:
    """The family's model of this loss whose total (eq 2) is least; None when none reaches it.
    From 20 tokens per parameter up, a model of τ tokens per parameter needs the FLOPs at which
    eq 1 raised by eq 4 gives `loss`; they determine its size."""
    taus = np.geomspace(TOKENS_PER_PARAMETER, _MOST_TOKENS_PER_PARAMETER, _POINTS)
    sizes = np.geomspace(1e5, 1e14, _POINTS)
    costs = np.log([training_flops_per_token(n) * n for n in sizes])
    candidates: list[ModelUse] = []
    for tau in taus.tolist():
        training = recipe.flops_for(loss / (1 + recipe.degradation(tau)))
        if not math.isfinite(training):
            continue
        parameters = float(np.exp(np.interp(math.log(training / tau), costs, np.log(sizes))))
        candidates.append(use(parameters, tau * parameters, training, inference_tokens))
    return min(candidates, key=lambda one: one.total_flops, default=None)


def use(
    parameters: float,
    tokens: float,
    training: float,
    inference_tokens: float,
    per_token: float | None = None,
) -> ModelUse:
    """A model of `parameters`; `per_token`: its inference FLOPs, None for those of the family."""
    each = _per_token(parameters, _INFERENCE) if per_token is None else per_token
    total = recipe.total_flops(training, inference_tokens, each)
    return ModelUse(
        parameters=parameters,
        tokens=tokens,
        tokens_per_parameter=tokens / parameters,
        training_flops=training,
        inference_flops=total - training,
        total_flops=total,
    )
