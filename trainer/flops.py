"""Parameters and FLOPs of a model as the paper counts them, for every option of section `model`.

Sources: Cerebras-GPT (arXiv 2304.03208) Table 12 (parameters) and Table 13 (FLOPs). The formulas
stand in `wafer_backend.performance_model.shape`, which the simulated times use too; here a config
becomes such a shape. What the paper's models do not have is counted in the same manner
(docs/plan.md).
"""

from trainer.config import ModelConfig
from wafer_backend.performance_model import (
    GPTShape,
    Variant,
    parameters_of,
)
from wafer_backend.performance_model import (
    inference_flops_per_sequence as _inference_flops,
)
from wafer_backend.performance_model import (
    training_flops_per_sequence as _training_flops,
)


def shape(model: ModelConfig) -> GPTShape:
    """The model as the performance model reads it."""
    return GPTShape(
        layers=model.num_hidden_layers,
        width=model.hidden_size,
        heads=model.num_heads,
        filter=model.filter_size,
        vocabulary=model.vocab_size,
        sequence_length=model.max_position_embeddings,
        variant=_variant(model),
    )


def _variant(model: ModelConfig) -> Variant:
    shares_norm = model.parallel_block and not model.use_untied_layer_norm
    return Variant(
        key_value_heads=None if model.num_kv_heads == model.num_heads else model.num_kv_heads,
        position=model.position_embedding_type,
        rotary_width=model.rotary_dim if model.position_embedding_type == "rotary" else None,
        norm=model.norm_type,
        norms_per_block=1 if shares_norm else 2,
        activation="gelu" if model.nonlinearity == "gelu_new" else model.nonlinearity,
        tied=model.share_embedding_weights,
        qkv_bias=model.use_projection_bias_in_attention,
        output_bias=model.use_ffn_bias_in_attention,
        filter_bias=model.use_ffn_bias,
        read_out_bias=model.use_bias_in_output,
    )


def parameter_count(model: ModelConfig) -> int:
    """Trained parameters, a tied matrix once (P Table 12, generalised)."""
    return parameters_of(shape(model))


def training_flops_per_sequence(model: ModelConfig) -> int:
    """FLOPs of forward and backward for one sequence of MSL tokens (P Table 13)."""
    return _training_flops(shape(model))


def inference_flops_per_sequence(model: ModelConfig) -> int:
    """FLOPs of forward for one sequence of MSL tokens that is read at once (P Table 13)."""
    return _inference_flops(shape(model))
