"""muP: what makes hyperparameters of a narrow proxy hold for a wide model, there and back.

Source: Cerebras-GPT (arXiv 2304.03208) Table 14; m_width = width / width of the proxy. A config has
muP when it has `mup_base_hidden_size`. Four things follow from it: the embeddings' factor m_emb and
1 / m_width on the logits, narrower initial weights (both in `decoder`), 1 / d_head in attention
(`attention`), and smaller learning rates (`optimizer`) of the matrices inside blocks.
"""

from typing import Any

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig
from trainer.config.model import TruncatedNormal
from trainer.recipe import MUP


def in_block(name: str) -> bool:
    """Whether a parameter is inside a block; its matrices there are the group `decoder_kernel`."""
    return name.startswith("blocks.")


def fan_in_multiplier(name: str, config: ModelConfig) -> float:
    """How many times as many inputs the matrix `name` of a block has as in the proxy: m_width,
    or the ratio of filter sizes for the last feed-forward matrix where `mup_base_filter_size` is
    given."""
    base = config.mup_base_filter_size
    if base is not None and name.endswith(".feed_forward.output.weight"):
        return config.filter_size / base
    return config.m_width


_PARAMETRIZATION = (
    "mup_base_hidden_size",
    "mup_base_filter_size",
    "scale_qk_dot_by_d",
    "embeddings_scale",
    "output_logits_alpha",
    "output_logits_scale",
    "embedding_initializer",
    "initializer",
    "output_layer_initializer",
)


def to_mup(config: ModelConfig, base_width: int = MUP.base_hidden_size) -> ModelConfig:
    """The same decoder in muP, with the paper's tuned sigma and m_emb, for the learning rate of
    `trainer.recipe.MUP`. Raises ConfigError when it has muP already, or attention logits that
    are not scaled."""
    if config.mup_base_hidden_size is not None:
        raise ConfigError(
            f"model.mup_base_hidden_size is {config.mup_base_hidden_size}: this model has muP "
            "already; expected one in standard parametrization"
        )
    if config.attention_type == "dot_product":
        raise ConfigError(
            "model.attention_type is dot_product: muP divides attention logits by the width of a "
            "head; expected scaled_dot_product"
        )
    rule = TruncatedNormal(std=MUP.std)
    return _changed(
        config,
        mup_base_hidden_size=base_width,
        scale_qk_dot_by_d=True,
        embeddings_scale=MUP.embeddings_scale,
        embedding_initializer=rule,
        initializer=rule,
    )


def to_sp(config: ModelConfig) -> ModelConfig:
    """The same decoder in standard parametrization, with the paper's sigma of 0.02; also the config
    of muP weights whose factors were folded into them."""
    return _changed(config)


def _changed(config: ModelConfig, **parametrization: Any) -> ModelConfig:
    """The config with all keys of its parametrization at their defaults, except those given."""
    kept = {name: value for name, value in config if name not in _PARAMETRIZATION}
    return ModelConfig(**kept, **parametrization)
