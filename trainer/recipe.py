"""Cerebras-GPT (arXiv 2304.03208), here P, as data and closed forms: its recipe, and its laws for
loss and compute.

The rows of Table 1 are used as they are; for a size between them `settings_for` has a rule of ours.
Equations 1 and 4 are about the Pile test set, in nats per GPT-2 token, and were fitted on models of
111M to 13B parameters trained on 20 tokens per parameter, 2.6e18 to 2.3e22 FLOPs.
"""

import bisect
import itertools
import math
from dataclasses import dataclass
from typing import Literal

from wafer_backend.performance_model.calibration import SHAPES, TOKENS
from wafer_backend.performance_model.shape import GPTShape

TOKENS_PER_PARAMETER = 20
"""P section 2.1: compute-optimal."""

FITTED_FLOPS = (2.6e18, 2.3e22)
"""P Table 8: training FLOPs of the smallest and the largest model behind eq 1."""

SCALE, EXPONENT, IRREDUCIBLE = 5.984e22, 0.0737, 0.5066
"""Eq 1: (f / SCALE) ** -EXPONENT + IRREDUCIBLE."""


def loss_at(flops: float) -> float:
    """Eq 1: Pile test loss in nats per GPT-2 token of a compute-optimal model.

    >>> round(loss_at(2.6e18), 3)
    2.603
    """
    return float((flops / SCALE) ** -EXPONENT + IRREDUCIBLE)


def flops_for(loss: float) -> float:
    """Eq 1 solved for training FLOPs; infinite for a loss that the law never reaches.

    >>> f"{flops_for(loss_at(1e20)):.3e}"
    '1.000e+20'
    """
    reducible = loss - IRREDUCIBLE
    return SCALE * reducible ** (-1 / EXPONENT) if reducible > 0 else math.inf


def degradation(tokens_per_parameter: float) -> float:
    """Eq 4: share by which the loss is above that of a compute-optimal model of equal FLOPs.

    >>> [round(degradation(tau), 3) for tau in (20, 100, 4284)]
    [0.0, 0.015, 0.166]
    """
    return 0.023 * math.log(math.sqrt(TOKENS_PER_PARAMETER / tokens_per_parameter)) ** 2


def predicted_loss(flops: float, tokens_per_parameter: float) -> float:
    """Eq 1 raised by eq 4: Pile test loss in nats per GPT-2 token."""
    return loss_at(flops) * (1 + degradation(tokens_per_parameter))


def total_flops(training: float, inference_tokens: float, per_token: float) -> float:
    """Eq 2: FLOPs of training and of all inference; `per_token`: inference FLOPs per token."""
    return training + inference_tokens * per_token


WARMUP_TOKENS = 375e6
"""P section 2.3: linear warm-up of the learning rate."""

END_SHARE = 0.1
"""P section 2.3: the learning rate decays to this share of its peak."""

BETAS, WEIGHT_DECAY, MAX_GRADIENT_NORM = (0.9, 0.95), 0.1, 1.0
"""P section 2.3: AdamW."""

INITIAL_STD = 0.02
"""P section 2.3: of a truncated normal; the last layer of a branch has this / sqrt(2 layers)."""

SEQUENCE_LENGTH = 2048
"""Tokens, P Table 1: MSL, in which the batch sizes below are counted."""

Decay = Literal["linear", "cosine", "constant"]
Schedule = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class PaperModel:
    """A row of Table 1. `tokens`: trained on. `schedule`: ((first step, sequences), ...).
    `learning_rate`: peak. `eps`: of Adam (P 2.3). `steps`: of the run, 20 tokens per parameter."""

    name: str
    shape: GPTShape
    tokens: float
    schedule: Schedule
    learning_rate: float
    decay: Decay
    eps: float
    steps: int


def _member(
    name: str, batch_size: int, learning_rate: float, decay: Decay, eps: float = 1e-8
) -> PaperModel:
    shape, schedule = SHAPES[name], ((1, batch_size),)
    steps = steps_for(TOKENS_PER_PARAMETER * shape.parameters, schedule, SEQUENCE_LENGTH)
    return PaperModel(
        name=name,
        shape=shape,
        tokens=TOKENS[name],
        schedule=schedule,
        learning_rate=learning_rate,
        decay=decay,
        eps=eps,
        steps=steps,
    )


def steps_for(tokens: float, schedule: Schedule, sequence_length: int) -> int:
    """Whole steps that `tokens` are enough for, at least 1.

    >>> steps_for(2_221_009_920, ((1, 120),), 2048)
    9037
    >>> steps_for(84.05e9 + 10 * 1080 * 2048, ((1, 720), (57_001, 1080)), 2048)
    57010
    """
    left, last = float(tokens), schedule[-1]
    for (first, size), (following, _) in itertools.pairwise(schedule):
        span = following - first
        if left < span * size * sequence_length:
            return max(1, first - 1 + int(left // (size * sequence_length)))
        left -= span * size * sequence_length
    return max(1, last[0] - 1 + int(left // (last[1] * sequence_length)))


def samples_in(steps: int, schedule: Schedule) -> int:
    """Sequences of the first `steps` steps.

    >>> samples_in(135_237, ((1, 720), (57_001, 1080))) * 2048
    257097646080
    """
    ends = [first for first, _ in schedule[1:]] + [steps + 1]
    return sum(
        size * max(0, min(end, steps + 1) - first)
        for (first, size), end in zip(schedule, ends, strict=True)
    )


FAMILY = {
    member.name: member
    for member in (
        _member("111M", 120, 6.0e-4, "linear"),
        _member("256M", 264, 6.0e-4, "linear"),
        _member("590M", 264, 2.0e-4, "linear"),
        _member("1.3B", 528, 2.0e-4, "cosine"),
        _member("2.7B", 528, 2.0e-4, "cosine"),
        _member("6.7B", 1040, 1.2e-4, "linear", 1e-9),
        PaperModel(
            name="13B",
            shape=SHAPES["13B"],
            tokens=TOKENS["13B"],
            schedule=((1, 720), (57_001, 1080)),
            learning_rate=1.2e-4,
            decay="cosine",
            eps=1e-9,
            steps=135_237,
        ),
    )
}
"""Table 1. 13B: 720 sequences until 84B tokens; its 135,237 steps are the 257.1B tokens of the
table, while the file that was released with the model has 116,223 at a constant 1080."""


@dataclass(frozen=True, kw_only=True)
class Mup:
    """muP as the paper tuned it on a proxy (P Table 14 and section 3)."""

    base_hidden_size: int = 256
    base_filter_size: int = 1024
    learning_rate: float = 6.0e-3
    std: float = 0.08
    embeddings_scale: float = 10.0
    decay: Decay = "linear"


MUP = Mup()
"""The proxy's filter size is not printed; 4 times its width, as in all of Table 1, is taken."""

_PROXY = (40e6, 64)
"""The muP proxy: 40M parameters, batches of 131K tokens = 64 sequences (P section 3)."""


@dataclass(frozen=True, kw_only=True)
class RecipeSettings:
    """What a run is trained with. `learning_rate`: peak, after `warmup_steps`; then `decay` to
    `END_SHARE` of it at step `steps`. `source`: where batch and learning rate are from."""

    schedule: Schedule
    steps: int
    warmup_steps: int
    learning_rate: float
    decay: Decay
    eps: float
    source: str


def settings_for(
    parameters: int,
    tokens: float | None = None,
    sequence_length: int = SEQUENCE_LENGTH,
    *,
    mup: bool = False,
) -> RecipeSettings:
    """Settings for a model of `parameters` on `tokens`; None: the run of the paper's row, or 20
    tokens per parameter.

    Rule (ours) for a size that is not in Table 1: learning rate and batch are interpolated between
    the rows around it, linear in the logarithms; decay and eps are those of the nearer row. Below
    111M the batch follows the line through the paper's 40M proxy; above 13B the last row holds.
    Batches keep their tokens when the sequence length is another one.
    """
    row, near = find_paper_model(parameters), find_nearest_model(parameters)
    if row:
        schedule = row.schedule
    elif parameters >= _SIZES[0]:
        schedule = ((1, _round_batch(_interpolated(parameters, _BATCHES))),)
    else:
        size, batch = _PROXY
        slope = math.log(_BATCHES[0] / batch) / math.log(_SIZES[0] / size)
        schedule = ((1, _round_batch(float(_BATCHES[0] * (parameters / _SIZES[0]) ** slope))),)
    if sequence_length != SEQUENCE_LENGTH:
        share = SEQUENCE_LENGTH / sequence_length
        schedule = ((1, _round_batch(schedule[-1][1] * share)),)
    if row and tokens is None and sequence_length == SEQUENCE_LENGTH:
        steps = row.steps
    else:
        budget = TOKENS_PER_PARAMETER * parameters if tokens is None else tokens
        steps = steps_for(budget, schedule, sequence_length)
    rate = float(f"{_interpolated(parameters, _RATES):.1e}")
    return RecipeSettings(
        schedule=schedule,
        steps=steps,
        warmup_steps=warmup_steps(steps, schedule, sequence_length),
        learning_rate=MUP.learning_rate if mup else rate,
        decay=MUP.decay if mup else near.decay,
        eps=near.eps,
        source=_source(parameters, row),
    )


def find_paper_model(parameters: int) -> PaperModel | None:
    """The row of Table 1 with exactly this many parameters."""
    return next((m for m in FAMILY.values() if m.shape.parameters == parameters), None)


def find_nearest_model(parameters: float) -> PaperModel:
    """The row of Table 1 that is nearest in the logarithm of parameters.

    >>> find_nearest_model(400e6).name
    '590M'
    """
    return min(FAMILY.values(), key=lambda m: abs(math.log(m.shape.parameters / parameters)))


def warmup_steps(steps: int, schedule: Schedule, sequence_length: int = SEQUENCE_LENGTH) -> int:
    """Steps of 375M tokens; of a run with fewer steps than those leave room for, the share of the
    paper's shortest run (111M, 1,525 of 9,037; ours).

    >>> warmup_steps(9037, ((1, 120),)), warmup_steps(116_223, ((1, 1080),))
    (1525, 169)
    >>> warmup_steps(903, ((1, 120),))
    152
    """
    full = int(WARMUP_TOKENS // (schedule[0][1] * sequence_length))
    shortest = FAMILY["111M"]
    most = int(WARMUP_TOKENS // (shortest.schedule[0][1] * SEQUENCE_LENGTH))
    return min(full, steps * most // shortest.steps)


_SIZES = [float(m.shape.parameters) for m in FAMILY.values()]
_RATES = [m.learning_rate for m in FAMILY.values()]
_BATCHES = [float(m.schedule[-1][1]) for m in FAMILY.values()]


def _interpolated(parameters: float, values: list[float]) -> float:
    """Value at `parameters` on the line in the logarithms through Table 1; ends hold."""
    if parameters <= _SIZES[0] or parameters >= _SIZES[-1]:
        return values[0] if parameters <= _SIZES[0] else values[-1]
    i = bisect.bisect_left(_SIZES, parameters)
    share = math.log(parameters / _SIZES[i - 1]) / math.log(_SIZES[i] / _SIZES[i - 1])
    return float(values[i - 1] ** (1 - share) * values[i] ** share)


def _round_batch(sequences: float) -> int:
    """To a multiple of 8, which halves often; below 32 to a whole number."""
    return max(1, round(sequences)) if sequences < 32 else 8 * round(sequences / 8)


def _source(parameters: int, row: PaperModel | None) -> str:
    if row is not None:
        return f"Table 1, {row.name}"
    names, i = list(FAMILY), bisect.bisect_left(_SIZES, parameters)
    if i == 0:
        return (
            "below Table 1: learning rate of 111M, batch size by way of the 40M proxy (our own "
            "rule)"
        )
    if i == len(names):
        return "above Table 1: settings of 13B (our own rule)"
    return f"between {names[i - 1]} and {names[i]} of Table 1, in logarithms (our own rule)"
