"""What `Params.notes` tells beside old spellings: defaults taken over, and another run length than
the paper's."""

from collections.abc import Iterator
from typing import Any

from pipeline.core.order import Schedule, samples_before_step
from trainer.config.draft import Draft
from trainer.config.model import ModelConfig
from trainer.config.optimizer import OPTIMIZERS, AdamW
from trainer.recipe import FAMILY, PaperModel

THEIRS = {"eps": "1e-6", "betas": "[0.9, 0.999]", "weight_decay": "0", "max_gradient_norm": "none"}
"""Defaults of Model Zoo's AdamW that are others here; of other optimizers the last one is."""


def describe_other_defaults(draft: Draft, model: ModelConfig) -> Iterator[str]:
    """Lines on keys that are not given and that have another default here than in Model Zoo."""
    optimizer = draft.section("optimizer")
    kind = OPTIMIZERS[optimizer["optimizer_type"]]
    for key, theirs in THEIRS.items():
        if key not in optimizer and (kind is AdamW or key == "max_gradient_norm"):
            ours: Any = kind.model_fields[key].default
            shown = list(ours) if isinstance(ours, tuple) else ours
            yield f"{draft.written('optimizer')}.{key}: not given, so {shown} (Model Zoo: {theirs})"
    if model.position_embedding_type == "rotary" and model.rotary_dim is None:
        width = model.head_size
        yield (
            f"{draft.written('model')}.rotary_dim: not given, so {width}, a whole head (Model Zoo: "
            f"{width // 4})"
        )
    given = draft.section("model")
    yield from _initial_weights(draft, model)
    if model.parallel_block and not {"dropout_rate", "residual_dropout_rate"} & given.keys():
        yield f"{draft.written('model')}.dropout_rate: not given, so 0.0 (Model Zoo: 0.1)"
    if model.mixed_precision and "fp16_type" not in given:
        yield f"{draft.written('model')}.fp16_type: not given, so {model.fp16_type}"
    rotary = model.position_embedding_type == "rotary" and model.norm_type == "layernorm"
    if rotary and "parallel_block" not in given:
        yield (
            f"{draft.written('model')}.parallel_block: not given, so false; GPT-J and GPT-NeoX "
            "need "
            "true"
        )
    if model.mup_base_hidden_size and "scale_qk_dot_by_d" not in given:
        yield f"{draft.written('model')}.scale_qk_dot_by_d: not given, so true, because of muP"
    if model.loss_scaling == "num_tokens" and model.loss_weight != 1.0:
        yield (f"{draft.written('model.loss_weight')}: has no effect with loss_scaling: num_tokens")
    if draft.section("train_input").get("mixture"):
        yield (
            f"{draft.written('train_input.mixture')}: a weight is how many times a pass reads "
            "the rows of its data set (Model Zoo: its share of the samples)"
        )


def _initial_weights(draft: Draft, model: ModelConfig) -> Iterator[str]:
    given = draft.section("model")
    follows = "initializer" in given and model.output_layer_initializer is None
    if follows and model.mup_base_hidden_size is None:
        yield (
            f"{draft.written('model')}.output_layer_initializer: not given, so initializer / "
            "sqrt(2 "
            "num_hidden_layers) (Model Zoo: initializer)"
        )


def other_than_the_paper(
    model: ModelConfig, schedule: Schedule, max_steps: int | None
) -> Iterator[str]:
    """A line when a Cerebras-GPT shape is trained for another length than in Table 1."""
    member = next((m for m in FAMILY.values() if _has_shape_of(model, m)), None)
    if (
        member is None
        or max_steps is None
        or (schedule, max_steps)
        == (
            member.schedule,
            member.steps,
        )
    ):
        return
    yield (
        f"the model has the shape of Cerebras-GPT {member.name}, which the paper trained "
        f"{_run(member.schedule, member.steps)}; this file says, and is followed: "
        f"{_run(schedule, max_steps)}"
    )


def _run(schedule: Schedule, steps: int) -> str:
    """A run in words.

    >>> _run(((1, 720), (57_001, 1080)), 135_237)
    'to step 135,237 with batches of 720, from step 57,001 of 1,080 sequences (257.1B tokens)'
    """
    first, *later = schedule
    sizes = [f"{first[1]:,}", *(f"from step {step:,} of {size:,}" for step, size in later)]
    tokens = samples_before_step(steps + 1, schedule) * FAMILY["13B"].shape.sequence_length
    return (
        f"to step {steps:,} with batches of {', '.join(sizes)} sequences ({tokens / 1e9:.1f}B "
        "tokens)"
    )


def _has_shape_of(model: ModelConfig, member: PaperModel) -> bool:
    shape = member.shape
    return (
        model.hidden_size, model.num_hidden_layers, model.num_heads, model.filter_size,
        model.vocab_size, model.max_position_embeddings, model.position_embedding_type,
        model.nonlinearity,
    ) == (
        shape.width, shape.layers, shape.heads, shape.filter, shape.vocabulary,
        shape.sequence_length, "learned", "gelu",
    )  # fmt: skip
