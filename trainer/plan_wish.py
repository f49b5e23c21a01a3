"""From what was asked for (parameters, FLOPs, tokens, a params file) to a shape and settings."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.core.errors import ConfigError
from trainer import disk, flops, plan_size
from trainer.amount import parse_amount
from trainer.config import CosineDecay, Linear, Params, Polynomial, RunConfig, load_params
from trainer.convert.parameters import shapes
from trainer.optimizer import adam_eps
from trainer.recipe import (
    FAMILY,
    SEQUENCE_LENGTH,
    TOKENS_PER_PARAMETER,
    Decay,
    RecipeSettings,
    settings_for,
    steps_for,
)
from trainer.schedule import peak as peak_of
from wafer_backend.performance_model.shape import GPTShape, training_flops_per_sequence


@dataclass(frozen=True)
class PlanOptions:
    """What was asked for; None where nothing was.

    `parameters`: a count, or the name of a row of Table 1. `flops`: of training. `tokens`: to train
    on. `params`: a params file in place of all these. `mup`: muP in place of SP.
    """

    parameters: str | None = None
    flops: float | None = None
    tokens: float | None = None
    params: Path | None = None
    mup: bool = False


@dataclass(frozen=True)
class ModelChoice:
    """A shape with the settings it is trained with. `file`: the params file that says so, with
    its `num_csx`; `checkpoints`: how many are kept; `checkpoint_bytes`: of one, where the file says
    what it holds, None for AdamW's state; `sparse`: whether weights are pruned."""

    shape: GPTShape
    settings: RecipeSettings
    mup: bool
    file: Path | None = None
    num_csx: int | None = None
    checkpoints: int = RunConfig().max_checkpoints
    checkpoint_bytes: int | None = None
    sparse: bool = False


def choose(wish: PlanOptions, vocabulary: int | None, sequence_length: int | None) -> ModelChoice:
    """Shape and settings of a wish; vocabulary and MSL are the paper's unless given.

    Raises ConfigError.
    """
    numbers = [wish.parameters, wish.flops, wish.tokens]
    given = sum(value is not None for value in numbers)
    if wish.params is not None:
        if given or wish.mup:
            raise ConfigError(
                "--params sets everything: leave out --params-count, --flops, --tokens and --mup"
            )
        return _from_file(wish.params, load_params(wish.params))
    if given not in (1, 2):
        raise ConfigError("give one or two of --params-count, --flops, --tokens, or --params FILE")
    entries = vocabulary or plan_size.VOCABULARY
    length = sequence_length or SEQUENCE_LENGTH
    shape = plan_size.shape_for(_parameters(wish), entries, length)
    settings = settings_for(shape.parameters, _tokens(wish, shape), length, mup=wish.mup)
    return ModelChoice(shape, settings, wish.mup)


def _parameters(wish: PlanOptions) -> float:
    if wish.parameters is not None:
        member = FAMILY.get(wish.parameters.upper())
        return member.shape.parameters if member else _count(wish.parameters)
    if wish.flops is None:
        assert wish.tokens is not None, "choose() refuses no wish at all"
        return wish.tokens / TOKENS_PER_PARAMETER
    if wish.tokens is None:
        return plan_size.parameters_for_flops(wish.flops)
    return plan_size.parameters_for_run(wish.flops, wish.tokens)


def _count(text: str) -> float:
    try:
        return parse_amount(text)
    except ValueError as error:
        raise ConfigError(f"--params-count {error}") from None


def _tokens(wish: PlanOptions, shape: GPTShape) -> float | None:
    """Tokens asked for, or those that the FLOPs are enough for; None: 20 per parameter."""
    if wish.tokens is not None or wish.flops is None:
        return wish.tokens
    return wish.flops / training_flops_per_sequence(shape) * shape.sequence_length


def _from_file(file: Path, params: Params) -> ModelChoice:
    """What a params file says; without a length in steps it is 20 tokens per parameter."""
    shape, schedule = flops.shape(params.model), params.train_input.schedule
    run, steps = params.runconfig, known_steps(params.runconfig)
    source = "params file"
    if steps is None:
        steps = steps_for(TOKENS_PER_PARAMETER * shape.parameters, schedule, shape.sequence_length)
        source += "; length: 20 tokens per parameter"
    peak, warmup, decay = _learning_rate(params)
    eps = adam_eps(params.optimizer)
    settings = RecipeSettings(schedule, steps, warmup, peak, decay, eps, source)
    mup = params.model.mup_base_hidden_size is not None
    one = disk.checkpoint_bytes(params, shapes(params.model))
    sparse = bool(params.sparsity)
    return ModelChoice(shape, settings, mup, file, run.num_csx, run.max_checkpoints, one, sparse)


def known_steps(run: RunConfig) -> int | None:
    """Steps of a run, None where they depend on the data (epochs) or are not given."""
    return min((n for n in (run.max_steps, run.num_steps) if n is not None), default=None)


def _learning_rate(params: Params) -> tuple[float, int, Decay]:
    """(peak, warm-up steps, form of the last scheduler)."""
    rates = params.optimizer.learning_rate
    if isinstance(rates, int | float):
        return float(rates), 0, "constant"
    first, warmup = rates[0], 0
    if isinstance(first, Linear | CosineDecay | Polynomial):
        rising = first.end_learning_rate > first.initial_learning_rate
        warmup = first.total_iters if rising else 0
    forms: dict[str, Decay] = {"Linear": "linear", "CosineDecay": "cosine"}
    return peak_of(rates), warmup, forms.get(rates[-1].scheduler, "constant")
