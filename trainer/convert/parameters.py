"""The parameters that a model of a config has: names and shapes, in the model's own order."""

from trainer.config import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def shapes(config: ModelConfig) -> Shapes:
    """Name -> shape of every parameter of `trainer.model.GPT(config)`; tied ones once."""
    width, vocabulary = config.hidden_size, config.vocab_size
    found: Shapes = {"token_embedding.weight": (vocabulary, width)}
    if config.position_embedding_type == "learned":
        found["position_embedding.weight"] = (config.max_position_embeddings, width)
    for index in range(config.num_hidden_layers):
        found |= _block(config, f"blocks.{index}.")
    found |= _norm(config, "final_norm")
    if not config.share_embedding_weights:
        found["read_out.weight"] = (vocabulary, width)
    if config.use_bias_in_output:
        found["read_out.bias"] = (vocabulary,)
    return found


def qkv_rows(config: ModelConfig) -> tuple[int, int]:
    """Rows of Q, and rows of K (as many as of V)."""
    head = config.hidden_size // config.num_heads
    return config.hidden_size, config.num_kv_heads * head


def _block(config: ModelConfig, prefix: str) -> Shapes:
    width, filter_size = config.hidden_size, config.filter_size
    q_rows, k_rows = qkv_rows(config)
    found = _norm(config, f"{prefix}attention_norm")
    found |= _linear(
        f"{prefix}attention.qkv",
        (q_rows + 2 * k_rows, width),
        config.use_projection_bias_in_attention,
    )
    found |= _linear(f"{prefix}attention.output", (width, width), config.use_ffn_bias_in_attention)
    if config.use_untied_layer_norm or not config.parallel_block:
        found |= _norm(config, f"{prefix}feed_forward_norm")
    inner = ["input", "gate"] if config.nonlinearity == "swiglu" else ["input"]
    for name in inner:
        found |= _linear(f"{prefix}feed_forward.{name}", (filter_size, width), config.use_ffn_bias)
    return found | _linear(
        f"{prefix}feed_forward.output", (width, filter_size), config.use_ffn_bias
    )


def _linear(name: str, shape: tuple[int, int], bias: bool) -> Shapes:
    found: Shapes = {f"{name}.weight": shape}
    if bias:
        found[f"{name}.bias"] = shape[:1]
    return found


def _norm(config: ModelConfig, name: str) -> Shapes:
    found: Shapes = {f"{name}.weight": (config.hidden_size,)}
    if config.norm_type == "layernorm":
        found[f"{name}.bias"] = (config.hidden_size,)
    return found
