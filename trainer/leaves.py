"""How many sequences one leaf holds: the `micro_batch_size` rule."""

from trainer.config import InputConfig, ModelConfig, Params
from wafer_backend import tree

_FP32_BYTES = 4


def micro_batch_size(params: Params, section: InputConfig) -> int:
    """Sequences per leaf (m) of one input section; never depends on num_csx.

    Raises BackendConfigError when one sequence does not fit `runconfig.wafer_memory`.
    """
    if section.micro_batch_size != "auto":
        return min(section.micro_batch_size, section.batch_size)
    return tree.auto_micro_batch_size(
        section.batch_size,
        min_leaves=params.runconfig.min_leaves,
        bytes_per_sample=activation_bytes(params.model),
        wafer_memory=params.runconfig.wafer_memory,
    )


def activation_bytes(model: ModelConfig) -> int:
    """Estimate of the fp32 activations one sequence keeps for backward, in bytes.

    Per layer and token: two norms, Q, K, V, attention output, projection, two residual sums and
    the feed-forward output (10 widths) and its two hidden tensors; at the end logits, their
    softmax and gradient. Attention scores are not kept (fused attention).
    """
    per_token_layer = 10 * model.hidden_size + 2 * model.filter_size
    per_token = model.num_hidden_layers * per_token_layer + 3 * model.vocab_size
    return _FP32_BYTES * model.max_position_embeddings * per_token
