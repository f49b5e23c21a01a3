"""From what was asked for (parameters, FLOPs, tokens, a params file) to a shape and settings; and a
params file for them, with the keys of Model Zoo R2.2 and the paper's recipe.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer import recipe
from trainer.config import Params, RunConfig, load_params, model_parameters
from trainer.config.model_parameters import shapes
from trainer.data.source import model_of_rows
from trainer.loop import build
from trainer.model.optimizer import adam_eps, find_peak_rate
from trainer.plan import size
from trainer.recipe import MUP, SEQUENCE_LENGTH, TOKENS_PER_PARAMETER, Decay, RecipeSettings
from trainer.runs.console import parse_amount
from wafer_backend.performance_model.shape import GPTShape, training_flops_per_sequence


@dataclass(frozen=True)
class PlanOptions:
    """What was asked for; None where nothing was. `parameters`: a count, or the name of a row of
    Table 1. `params`: a params file instead of all these. `mup`: muP instead of SP."""

    parameters: str | None = None
    flops: float | None = None
    tokens: float | None = None
    params: Path | None = None
    mup: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """A shape with the settings it is trained with. `file`: the params file that has them;
    `checkpoints`: how many are kept; `checkpoint_bytes`: of one, None for AdamW's state;
    `is_encoder`: it guesses hidden tokens and not the next ones. `rows`: vocabulary and length of
    the rows that it reads, None for its own."""

    shape: GPTShape
    settings: RecipeSettings
    mup: bool
    file: Path | None = None
    num_csx: int | None = None
    checkpoints: int = RunConfig().max_checkpoints
    checkpoint_bytes: int | None = None
    sparse: bool = False
    is_encoder: bool = False
    rows: tuple[int, int] | None = None


def choose_model(
    wish: PlanOptions, vocabulary: int | None, sequence_length: int | None
) -> ModelChoice:
    """Shape and settings of a wish; vocabulary and MSL are the paper's unless given. Raises
    ConfigError."""
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
    entries = vocabulary or size.VOCABULARY
    length = sequence_length or SEQUENCE_LENGTH
    shape = size.shape_for(_parameters(wish), entries, length)
    tokens = wish.tokens
    if tokens is None and wish.flops is not None:  # those that the FLOPs are enough for
        tokens = wish.flops / training_flops_per_sequence(shape) * length
    settings = recipe.settings_for(shape.parameters, tokens, length, mup=wish.mup)
    return ModelChoice(shape=shape, settings=settings, mup=wish.mup)


def _parameters(wish: PlanOptions) -> float:
    if wish.parameters is not None:
        member = recipe.FAMILY.get(wish.parameters.upper())
        if member is not None:
            return member.shape.parameters
        try:
            return parse_amount(wish.parameters)
        except ValueError as error:
            raise ConfigError(f"--params-count {error}") from None
    if wish.flops is None:
        assert wish.tokens is not None, "choose() refuses no wish at all"
        return wish.tokens / TOKENS_PER_PARAMETER
    if wish.tokens is None:
        return size.parameters_for_flops(wish.flops)
    return size.parameters_for_run(wish.flops, wish.tokens)


def _from_file(file: Path, params: Params) -> ModelChoice:
    """What a params file says; without a length in steps it is 20 tokens per parameter."""
    shape, schedule = model_parameters.gpt_shape(params.model), params.train_input.schedule
    run, steps = params.runconfig, known_steps(params.runconfig)
    source = "params file"
    if steps is None:
        steps = recipe.steps_for(TOKENS_PER_PARAMETER * shape.parameters, schedule, shape.positions)
        source += "; length: 20 tokens per parameter"
    peak, warmup, decay = _learning_rate(params)
    settings = RecipeSettings(
        schedule=schedule,
        steps=steps,
        warmup_steps=warmup,
        learning_rate=peak,
        decay=decay,
        eps=adam_eps(params.optimizer),
        source=source,
    )
    rows = model_of_rows(params.model, next(iter(params.train_input.data_transforms), None))
    return ModelChoice(
        shape=shape,
        settings=settings,
        mup=params.model.mup_base_hidden_size is not None,
        file=file,
        num_csx=run.num_csx,
        checkpoints=run.max_checkpoints,
        checkpoint_bytes=build.checkpoint_bytes(params, shapes(params.model)),
        sparse=bool(params.sparsity),
        is_encoder=params.model.bidirectional,
        rows=(rows.vocab_size, rows.max_position_embeddings),
    )


def known_steps(run: RunConfig) -> int | None:
    """Steps of a run, None where they depend on the data (epochs) or are not given."""
    return min((n for n in (run.max_steps, run.num_steps) if n is not None), default=None)


def _learning_rate(params: Params) -> tuple[float, int, Decay]:
    """(peak, warm-up steps, form of the last scheduler)."""
    rates = params.optimizer.learning_rate
    if isinstance(rates, int | float):
        return float(rates), 0, "constant"
    first, warmup = rates[0], 0
    settings = first.model_dump()
    if "end_learning_rate" in settings and first.length is not None:
        rising = settings["end_learning_rate"] > settings["initial_learning_rate"]
        warmup = first.length if rising else 0
    forms: dict[str, Decay] = {"Linear": "linear", "CosineDecay": "cosine"}
    return find_peak_rate(rates), warmup, forms.get(rates[-1].scheduler, "constant")


_PARTS_OF_A_RUN = 10
"""Checkpoints and evaluations of a run, as many as the released 111M has."""


def write_planned_params(path: Path, chosen: ModelChoice) -> None:
    """Publish `path`. Raises ConfigError when it is there already, and for what a file said."""
    if chosen.file is not None:
        raise ConfigError(
            f"--write needs a size to write a file for, but {chosen.file} is already a params file"
        )
    if path.exists():
        raise ConfigError(f"--write {path}: this file already exists; choose another name")
    sections = params_sections(chosen)
    Params.model_validate_json(json.dumps(sections))  # what is written must load
    text = yaml.safe_dump(sections, sort_keys=False, width=100)
    head = f"# {chosen.shape.parameters:,} parameters; recipe of Cerebras-GPT (arXiv 2304.03208): "
    storage.publish(path, f"{head}\n# {chosen.settings.source}\n{text}".encode())


def params_sections(chosen: ModelChoice) -> dict[str, Any]:
    """All sections of the file. Only for shapes of `plan_size`, which are GPT-2-like."""
    settings = chosen.settings
    every = max(1, settings.steps // _PARTS_OF_A_RUN)
    steps = [{"from_step": first, "batch_size": size} for first, size in settings.schedule]
    batch = {"batch_size_schedule": steps} if steps[1:] else {"batch_size": steps[0]["batch_size"]}
    return {
        "train_input": {"shuffle": True, **batch},
        "eval_input": {"shuffle": False, "batch_size": settings.schedule[0][1]},
        "model": _model(chosen),
        "optimizer": {
            "optimizer_type": "AdamW",
            "betas": list(recipe.BETAS),
            "eps": settings.eps,
            "weight_decay": recipe.WEIGHT_DECAY,
            "max_gradient_norm": recipe.MAX_GRADIENT_NORM,
            "learning_rate": _schedulers(settings),
        },
        "runconfig": {
            "max_steps": settings.steps,
            "checkpoint_steps": every,
            "eval_frequency": every,
            "seed": 1,
        },
    }


def _model(chosen: ModelChoice) -> dict[str, Any]:
    shape, std = chosen.shape, recipe.INITIAL_STD
    parametrization: dict[str, Any] = {
        "embedding_initializer": _normal(std),
        "initializer": _normal(std),
        "output_layer_initializer": _normal(std / math.sqrt(2 * shape.layers)),
    }
    if chosen.mup:  # P Table 14; deviations of matrices inside blocks follow from the widths
        parametrization = {
            "mup_base_hidden_size": MUP.base_hidden_size,
            "mup_base_filter_size": MUP.base_filter_size,
            "embeddings_scale": MUP.embeddings_scale,
            "output_logits_alpha": 1.0,
            "scale_qk_dot_by_d": True,
            "embedding_initializer": _normal(MUP.std),
            "initializer": _normal(MUP.std),
        }
    return {
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.sequence_length,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_heads": shape.heads,
        "filter_size": shape.filter,
        **parametrization,
        "loss_scaling": "num_tokens",
        "mixed_precision": True,
        "fp16_type": "bfloat16",
    }


def _normal(std: float) -> dict[str, Any]:
    return {"name": "truncated_normal", "mean": 0.0, "std": std}


def _schedulers(settings: RecipeSettings) -> list[dict[str, Any]]:
    """Linear up, then down to `END_SHARE` at the last step; no warm-up where it has no step."""
    peak, end = settings.learning_rate, recipe.END_SHARE * settings.learning_rate
    down = {
        "scheduler": {"linear": "Linear", "cosine": "CosineDecay"}[settings.decay],
        "initial_learning_rate": peak,
        "end_learning_rate": float(f"{end:.6g}"),
        "total_iters": settings.steps - settings.warmup_steps,
    }
    if settings.warmup_steps == 0:
        return [down]
    up = {
        "scheduler": "Linear",
        "initial_learning_rate": 0.0,
        "end_learning_rate": peak,
        "total_iters": settings.warmup_steps,
    }
    return [up, down]
