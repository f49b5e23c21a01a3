"""How many sequences one leaf holds: the `micro_batch_size` rule."""

from trainer.config import InputConfig, ModelConfig, Params
from wafer_backend import tree
from wafer_backend.activations import ActivationRule

_FP32_BYTES = 4
_HALF_BYTES = 2


def micro_batch_size(params: Params, section: InputConfig) -> int:
    """Sequences per leaf (m) of one input section; never depends on num_csx.

    Raises BackendConfigError when one sequence does not fit `runconfig.wafer_memory`.
    """
    if section.micro_batch_size != "auto":
        return min(section.micro_batch_size, section.batch_size)
    return tree.auto_micro_batch_size(
        section.batch_size,
        min_leaves=params.runconfig.min_leaves,
        bytes_per_sample=activation_bytes(params.model, params.runconfig.activations),
        wafer_memory=params.runconfig.wafer_memory,
    )


def activation_bytes(model: ModelConfig, rule: ActivationRule = "keep") -> int:
    """Estimate from above of the activations one sequence keeps for backward, in bytes.

    Per layer and token: two norms, Q, K, V, attention output, projection, two residual sums and
    the feed-forward output (10 widths) and its two hidden tensors; at the end logits, their
    softmax and gradient. "keep" holds all layers; "recompute" one, and the input of each; "evict"
    one. In half precision everything has half the bytes. Attention scores are not counted (fused
    attention); with dropout, PyTorch keeps them on a CPU.
    """
    layer = 10 * model.hidden_size + 2 * model.filter_size
    layers = {
        "keep": model.num_hidden_layers * layer,
        "recompute": model.num_hidden_layers * model.hidden_size + layer,
        "evict": layer,
    }
    size = _HALF_BYTES if model.mixed_precision else _FP32_BYTES
    return size * model.max_position_embeddings * (layers[rule] + 3 * model.vocab_size)
