"""muP weights as those of a plain model with the same logits (P Table 14, folded)."""

import math

from trainer.config import ModelConfig
from trainer.convert import lazy
from trainer.convert.lazy import LazyTensor, State
from trainer.convert.parameters import qkv_rows

_PLAIN = {
    "embeddings_scale": 1.0,
    "output_logits_alpha": None,
    "output_logits_scale": 1.0,
    "scale_qk_dot_by_d": False,
    "attention_type": "scaled_dot_product",
    "mup_base_hidden_size": None,
    "mup_base_filter_size": None,
}


def fold_mup(state: State, config: ModelConfig) -> tuple[dict[str, LazyTensor], ModelConfig]:
    """(weights, config) of the plain model that computes the same logits.

    Token and position embeddings take up m_emb. A tied read-out then is m_emb times too large, so
    the final norm's weight and bias take up output_logits_scale / m_emb, which is
    1 / (m_width m_emb); an untied read-out takes up output_logits_scale itself. Q takes up what the
    attention logits are scaled by beyond 1 / sqrt(d_head). Products are rounded once per weight.
    """
    m_emb, scale = config.embeddings_scale, config.output_logits_scale
    tied = config.share_embedding_weights
    factors = {
        "token_embedding.weight": m_emb,
        "position_embedding.weight": m_emb,
        "read_out.weight": scale,
        "read_out.bias": scale,
    }
    if tied:
        factors |= {"final_norm.weight": scale / m_emb, "final_norm.bias": scale / m_emb}
    folded = {name: lazy.scale(tensor, factors.get(name, 1.0)) for name, tensor in state.items()}
    factor = attention_factor(config)
    for name in folded:
        if "attention.qkv." in name:
            folded[name] = _q_scaled(folded[name], config, factor)
    return folded, config.model_copy(update=_PLAIN)


def attention_factor(config: ModelConfig) -> float:
    """What attention logits are multiplied by, over 1 / sqrt(d_head)."""
    root = math.sqrt(config.hidden_size // config.num_heads)
    if config.attention_type == "dot_product":
        return root
    return 1 / root if config.scale_qk_dot_by_d else 1.0


def _q_scaled(qkv: LazyTensor, config: ModelConfig, factor: float) -> LazyTensor:
    if factor == 1.0:
        return qkv
    q_rows, _ = qkv_rows(config)
    q, rest = lazy.rows(qkv, 0, q_rows), lazy.rows(qkv, q_rows, qkv.shape[0])
    return lazy.stack_rows([lazy.scale(q, factor), rest])
