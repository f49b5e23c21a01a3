"""A whole `params.yaml`: read, checked, and changed by command-line options."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, PrivateAttr

from pipeline.config.model import FrozenModel, parse
from pipeline.config.yaml import YamlDocument
from pipeline.core.errors import ConfigError
from pipeline.core.order import Schedule, samples_before_step
from pipeline.core.shipped import find_config
from trainer.config import legacy_keys, params_file, trainer_form
from trainer.config.model import ModelConfig
from trainer.config.optimizer import Optimizer, find_optimizer_config
from trainer.config.params_file import Draft
from trainer.config.sections import (
    EvalInput,
    InferenceInput,
    RunConfig,
    SampleInputConfig,
    TrainInput,
)
from trainer.config.sparsity import SparsityGroup
from trainer.recipe import FAMILY
from wafer_backend.cluster.precision import SCALED
from wafer_backend.optim.registry import OPTIMIZERS
from wafer_backend.performance_model.shape import GPTShape

_MODEL_ZOO_ADAMW = {
    "eps": "1e-6",
    "betas": "[0.9, 0.999]",
    "weight_decay": "0",
    "max_gradient_norm": "none",
}
"""Defaults of Model Zoo's AdamW that are others here; of other optimizers the last one is."""


def _describe_other_defaults(draft: Draft, model: ModelConfig) -> Iterator[str]:
    optimizer, given = draft.section("optimizer"), draft.section("model")
    section = draft.written("model")
    kind = find_optimizer_config(optimizer["optimizer_type"])
    for key, theirs in _MODEL_ZOO_ADAMW.items():
        if key not in optimizer and (kind.entry.name == "AdamW" or key == "max_gradient_norm"):
            ours: Any = kind.model_fields[key].default
            shown = list(ours) if isinstance(ours, tuple) else ours
            yield f"{draft.written('optimizer')}.{key}: not given, so {shown} (Model Zoo: {theirs})"
    rotary, width = model.position_embedding_type == "rotary", model.head_size
    if rotary and model.rotary_dim is None:
        yield (
            f"{section}.rotary_dim: not given, so {width}, a whole head (Model Zoo: {width // 4})"
        )
    plain = model.mup_base_hidden_size is None
    if plain and "initializer" in given and model.output_layer_initializer is None:
        yield (
            f"{section}.output_layer_initializer: not given, so initializer / sqrt(2 "
            "num_hidden_layers) (Model Zoo: initializer)"
        )
    if model.parallel_block and not {"dropout_rate", "residual_dropout_rate"} & given.keys():
        yield f"{section}.dropout_rate: not given, so 0.0 (Model Zoo: 0.1)"
    if model.mixed_precision and "fp16_type" not in given:
        yield f"{section}.fp16_type: not given, so {model.fp16_type}"
    if rotary and model.norm_type == "layernorm" and "parallel_block" not in given:
        yield (f"{section}.parallel_block: not given, so false; GPT-J and GPT-NeoX need true")
    if not plain and "scale_qk_dot_by_d" not in given:
        yield f"{section}.scale_qk_dot_by_d: not given, so true, because of muP"
    if model.loss_scaling == "num_tokens" and model.loss_weight != 1.0:
        yield f"{draft.written('model.loss_weight')}: has no effect with loss_scaling: num_tokens"
    if draft.section("train_input").get("mixture"):
        yield (
            f"{draft.written('train_input.mixture')}: a weight is how many times a pass reads "
            "the rows of its data set (Model Zoo: its share of the samples)"
        )


def _compare_with_the_paper(
    model: ModelConfig, schedule: Schedule, max_steps: int | None
) -> Iterator[str]:
    """A line when a Cerebras-GPT shape is trained for another length than in Table 1."""
    given = (
        *(model.hidden_size, model.num_hidden_layers, model.num_heads, model.filter_size),
        *(model.vocab_size, model.max_position_embeddings),
    )
    member = next((m for m in FAMILY.values() if _dimensions(m.shape) == given), None)
    plain = (model.position_embedding_type, model.nonlinearity) == ("learned", "gelu")
    if not plain or member is None or max_steps is None:
        return
    if (schedule, max_steps) != (member.schedule, member.steps):
        yield (
            f"the model has the shape of Cerebras-GPT {member.name}, which the paper trained "
            f"{_describe_length(member.schedule, member.steps)}; this file says, and is followed: "
            f"{_describe_length(schedule, max_steps)}"
        )


def _dimensions(shape: GPTShape) -> tuple[int, ...]:
    return (
        *(shape.width, shape.layers, shape.heads, shape.filter),
        *(shape.vocabulary, shape.sequence_length),
    )


def _describe_length(schedule: Schedule, steps: int) -> str:
    """
    >>> _describe_length(((1, 720), (57_001, 1080)), 135_237)
    'to step 135,237 with batches of 720, from step 57,001 of 1,080 sequences (257.1B tokens)'
    """
    first, *later = schedule
    sizes = [f"{first[1]:,}", *(f"from step {step:,} of {size:,}" for step, size in later)]
    tokens = samples_before_step(steps + 1, schedule) * FAMILY["13B"].shape.sequence_length
    return (
        f"to step {steps:,} with batches of {', '.join(sizes)} sequences ({tokens / 1e9:.1f}B "
        "tokens)"
    )


Section = TypeVar("Section", bound=SampleInputConfig)


class Params(FrozenModel):
    """A whole `params.yaml`."""

    train_input: TrainInput = Field(description="the training data")
    eval_input: EvalInput | None = Field(None, description="the validation data")
    inference_input: InferenceInput | None = Field(
        None, description="the prompts of `--mode infer`"
    )
    model: ModelConfig = Field(description="the shape of the model")
    optimizer: Optimizer = Field(description="the optimizer")
    sparsity: tuple[SparsityGroup, ...] = Field(
        (), description="the weights that are pruned; none by default"
    )
    runconfig: RunConfig = RunConfig()
    _notes: tuple[str, ...] = PrivateAttr(())

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on deprecated spellings, defaults taken over and keys without effect."""
        return self._notes


ParamsLike = str | os.PathLike[str] | Mapping[str, Any] | Params
"""Params as callers give them: a file, the name of a shipped one, what a file would hold, or it."""


def load_params(params: ParamsLike) -> Params:
    """Read and check a `params.yaml`, the shipped one of a bare name such as `tiny`, or a
    mapping. Relative directories are resolved against the file, or the working directory. Raises
    ConfigError, a line `FILE:LINE: key: what is wrong`."""
    if isinstance(params, Params):
        return params
    if isinstance(params, Mapping):
        return _read(YamlDocument.of_mapping("params", params), Path.cwd())
    file = find_config("train", Path(params))
    return _read(params_file.load_params_yaml(file), file.resolve().parent)


def _read(loaded: YamlDocument, base: Path) -> Params:
    draft = Draft.of(loaded)
    if "trainer" in draft.sections:
        trainer_form.to_sections(draft)
    legacy_keys.modernize(draft)
    try:
        params = parse(Params, draft.as_loaded())
    except ConfigError as error:
        raise ConfigError(draft.respelled(str(error))) from None
    _check(params, draft)
    from trainer.config import sparsity_names  # it needs torch

    try:
        groups = sparsity_names.resolve_groups(params.sparsity, params.model)
    except sparsity_names.FilterError as error:
        raise draft.error(f"sparsity.{error.key}", error.reason) from None
    resolved = params.model_copy(
        update={
            "train_input": _resolved(params.train_input, base),
            "eval_input": params.eval_input and _resolved(params.eval_input, base),
            "inference_input": params.inference_input and params.inference_input.beside(base),
            "runconfig": params.runconfig.beside(base),
            "sparsity": groups,
        }
    )
    schedule, last = params.train_input.schedule, params.runconfig.max_steps
    resolved._notes = (
        *draft.notes(),
        *_describe_other_defaults(draft, params.model),
        *_compare_with_the_paper(params.model, schedule, last),
    )
    return resolved


def _resolved(section: Section, base: Path) -> Section:
    directory = section.data_dir
    if isinstance(directory, tuple):
        directory = tuple(base / path for path in directory)
    elif directory is not None:
        directory = base / directory
    mixture = tuple(
        part.model_copy(update={"data_dir": base / part.data_dir}) for part in section.mixture
    )
    return section.model_copy(update={"data_dir": directory, "mixture": mixture})


_LENGTHS = ("max_steps", "num_steps", "num_epochs", "max_epochs")
_LEAST = {
    "seed": 0,
    "num_csx": 1,
    "num_steps": 1,
    "max_steps": 1,
    "num_epochs": 1,
    "eval_steps": 1,
    "num_wgt_servers": 0,
}


def override(params: Params, **options: Any) -> Params:
    """Put options of the command (None: not given) over the values of `runconfig`; a length
    replaces all lengths of the file. Raises ConfigError naming the option."""
    given = {key: value for key, value in options.items() if value is not None}
    for key, least in _LEAST.items():
        if key in given and given[key] < least:
            raise ConfigError(f"--{key} {given[key]}: expected an integer of at least {least}")
    if "num_wgt_servers" in given:
        given["max_wgt_servers"] = given.pop("num_wgt_servers")
    lengths = [key for key in _LENGTHS if key in given]
    if len(lengths) > 1:
        raise ConfigError(f"give only one of {', '.join(f'--{key}' for key in lengths)}")
    if lengths:
        given = {**dict.fromkeys(_LENGTHS), **given}
    run = params.runconfig.model_copy(update=given)
    return params.model_copy(update={"runconfig": run})


def _check(params: Params, draft: Draft) -> None:
    """Refuse an encoder that does not guess hidden tokens, with a decoder behind it cut-out spans,
    and another model that does; a loss scale where gradients have the range of fp32 anyway,
    cbfloat16 without the dynamic one that Model Zoo asks for, and muP, whose learning rates are for
    updates of the size of the rate, with an optimizer that needs others."""
    expected, why = task_of(params.model)
    for name, section in (("train_input", params.train_input), ("eval_input", params.eval_input)):
        given = None if section is None or section.masking is None else section.masking.name
        if section is not None and given != expected:
            raise draft.error(
                f"{name}.data_transforms",
                f"{given} is for encoders: set {_MODELS[given]}"
                if given is not None and expected is None
                else f"expected [{{name: {expected}}}]: {why}",
            )
    factor, precision = params.optimizer.loss_scaling_factor, params.model.precision
    if precision == "cbfloat16" and factor != "dynamic":
        raise draft.error(
            "optimizer.loss_scaling_factor",
            f"{factor}, but cbfloat16 needs a dynamic loss scale, or gradients underflow; set it "
            "to dynamic, as Model Zoo asks for",
        )
    if factor != 1.0 and precision not in SCALED:
        raise draft.error(
            "optimizer.loss_scaling_factor",
            f"{factor} is for float16 and cbfloat16_exact only, but this model computes in "
            f"{precision}; leave it out, or set model.mixed_precision: true and model.fp16_type: "
            "float16",
        )
    named = params.optimizer.entry
    if params.model.mup_base_hidden_size is not None and not named.kind.updates_have_size_of_rate:
        suitable = [n for n, one in OPTIMIZERS.items() if one.kind.updates_have_size_of_rate]
        raise draft.error(
            "optimizer.optimizer_type",
            f"{named.name} cannot be used with model.mup_base_hidden_size: the learning rates of "
            f"muP are for {', '.join(suitable)}; use one of these, or leave muP out",
        )


_MODELS = {
    "mask_tokens": "model.bidirectional: true",
    "corrupt_spans": "model.bidirectional: true and model.decoder_num_hidden_layers",
}
"""What a model needs for these tasks."""


def task_of(model: ModelConfig) -> tuple[str | None, str]:
    """What a model guesses, None for the next token; and why it does not learn otherwise."""
    if model.decoder_num_hidden_layers is not None:
        return "corrupt_spans", "with model.decoder_num_hidden_layers a decoder tells cut-out spans"
    if model.bidirectional:
        return "mask_tokens", (
            "with model.bidirectional: true a token sees the next one, which would be its label"
        )
    return None, ""
