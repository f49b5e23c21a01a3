"""A params file for a planned model, with the keys of Model Zoo R2.2 and the paper's recipe."""

import json
import math
from pathlib import Path
from typing import Any

import yaml

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer.config import Params
from trainer.plan_wish import ModelChoice
from trainer.recipe import (
    BETAS,
    END_SHARE,
    INITIAL_STD,
    MAX_GRADIENT_NORM,
    MUP,
    WEIGHT_DECAY,
    RecipeSettings,
)

_PARTS_OF_A_RUN = 10
"""Checkpoints and evaluations of a run, as many as the released 111M has."""


def write_params(path: Path, chosen: ModelChoice) -> None:
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
    return {
        "train_input": _train_input(settings),
        "eval_input": {"shuffle": False, "batch_size": settings.schedule[0][1]},
        "model": _model(chosen),
        "optimizer": {
            "optimizer_type": "AdamW",
            "betas": list(BETAS),
            "eps": settings.eps,
            "weight_decay": WEIGHT_DECAY,
            "max_gradient_norm": MAX_GRADIENT_NORM,
            "learning_rate": _schedulers(settings),
        },
        "runconfig": {
            "max_steps": settings.steps,
            "checkpoint_steps": every,
            "eval_frequency": every,
            "seed": 1,
        },
    }


def _train_input(settings: RecipeSettings) -> dict[str, Any]:
    if len(settings.schedule) == 1:
        return {"shuffle": True, "batch_size": settings.schedule[0][1]}
    entries = [{"from_step": step, "batch_size": size} for step, size in settings.schedule]
    return {"shuffle": True, "batch_size_schedule": entries}


def _model(chosen: ModelChoice) -> dict[str, Any]:
    shape = chosen.shape
    return {
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.sequence_length,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_heads": shape.heads,
        "filter_size": shape.filter,
        **(_mup() if chosen.mup else _standard(shape.layers)),
        "loss_scaling": "num_tokens",
        "mixed_precision": True,
        "fp16_type": "bfloat16",
    }


def _standard(layers: int) -> dict[str, Any]:
    return {
        "embedding_initializer": _normal(INITIAL_STD),
        "initializer": _normal(INITIAL_STD),
        "output_layer_initializer": _normal(INITIAL_STD / math.sqrt(2 * layers)),
    }


def _mup() -> dict[str, Any]:
    """P Table 14; deviations of matrices inside blocks follow from the widths."""
    return {
        "mup_base_hidden_size": MUP.base_hidden_size,
        "mup_base_filter_size": MUP.base_filter_size,
        "embeddings_scale": MUP.embeddings_scale,
        "output_logits_alpha": 1.0,
        "scale_qk_dot_by_d": True,
        "embedding_initializer": _normal(MUP.std),
        "initializer": _normal(MUP.std),
    }


def _normal(std: float) -> dict[str, Any]:
    return {"name": "truncated_normal", "mean": 0.0, "std": std}


def _schedulers(settings: RecipeSettings) -> list[dict[str, Any]]:
    """Linear up, then down to `END_SHARE` at the last step; no warm-up where it has no step."""
    peak, end = settings.learning_rate, END_SHARE * settings.learning_rate
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
