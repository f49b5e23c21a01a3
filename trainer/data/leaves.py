"""How many sequences one leaf holds: the `micro_batch_size` rule."""

from trainer.config import InputConfig, ModelConfig, Params
from wafer_backend.cluster import tree
from wafer_backend.streaming.activations import ActivationRule

_FP32_BYTES = 4
_HALF_BYTES = 2


def train_micro_batch(params: Params) -> int:
    """Sequences per leaf in training."""
    return micro_batch_size(params, params.train_input)


def micro_batch_size(params: Params, section: InputConfig) -> int:
    """Sequences per leaf (m) of one input section; never depends on num_csx.

    Raises BackendConfigError when one sequence does not fit `runconfig.wafer_memory`.
    """
    if section.micro_batch_size != "auto":
        return min(section.micro_batch_size, section.batch_size)
    return tree.auto_micro_batch_size(
        section.batch_size,
        min_leaves=params.runconfig.min_leaves,
        bytes_per_sample=activation_bytes(
            params.model, params.runconfig.activations, packed=section.use_vsl
        ),
        wafer_memory=params.runconfig.wafer_memory,
    )


def activation_bytes(
    model: ModelConfig, rule: ActivationRule = "keep", *, packed: bool = False
) -> int:
    """Estimate from above of the activations one sequence keeps for backward, in bytes.

    "keep" holds all layers; "recompute" one, and the input of each; "evict" one. At the end come
    logits, their softmax and gradient. In half precision everything has half the bytes, but for
    attention in float16. Attention scores are not counted (fused attention), but for ALiBi; with
    dropout, PyTorch keeps them on a CPU. `packed`: rows of several documents (VSL) have a mask.
    """
    size = _HALF_BYTES if model.mixed_precision else _FP32_BYTES
    length, depth = model.max_position_embeddings, model.num_hidden_layers
    layer = _layer_bytes(model, size) + (_FP32_BYTES * length**2 if packed else 0)
    layers = {
        "keep": depth * layer,
        "recompute": depth * size * length * model.hidden_size + layer,
        "evict": layer,
    }
    return layers[rule] + 3 * size * length * model.vocab_size


def _layer_bytes(model: ModelConfig, size: int) -> int:
    """Of one block, at `size` bytes an element.

    Per token: two norms, Q, K, V, attention output, projection, two residual sums and the
    feed-forward output (10 widths) and its two hidden tensors, of SwiGLU four. RMSNorm keeps its
    input in fp32 and the normalized one; rotated Q and K come beside the others. In float16,
    attention keeps its input, Q, K, V and its output in fp32, and an fp32 copy of the QKV weight.
    The bias of ALiBi makes attention keep its scores.
    """
    width, length = model.hidden_size, model.max_position_embeddings
    branches = 4 if model.nonlinearity == "swiglu" else 2
    total = size * length * (10 * width + branches * model.filter_size)
    if model.norm_type == "rmsnorm":
        total += 2 * (_FP32_BYTES + size) * length * width
    if model.position_embedding_type == "rotary":
        total += 2 * _FP32_BYTES * length * width
    if model.precision == "float16":
        wider = (_FP32_BYTES - size) * 4 + _FP32_BYTES
        total += length * width * wider + 3 * _FP32_BYTES * width * width
    if model.position_embedding_type == "alibi":
        total += 3 * _FP32_BYTES * model.num_heads * length * length
    return total
