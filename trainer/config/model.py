"""Section `model` of `params.yaml`, and types that several sections share."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.model import FrozenModel
from trainer.config.initializers import Initializer, Normal, TruncatedNormal
from wafer_backend.cluster.precision import Precision

Count = Annotated[int, Field(ge=1, le=1 << 31)]
Rate = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class ExtraAttention(FrozenModel):
    """Section `model.extra_attention_params`."""

    num_kv_groups: Count = Field(
        1, description="number of K and V heads, each shared by a group of Q heads"
    )


class PositionScaling(FrozenModel):
    """Section `model.pos_scaling_extra_args`: of llama3 the first three, of yarn the others and
    original_max_position_embeddings."""

    original_max_position_embeddings: Count | None = Field(
        None, description="MSL that the model was trained with before"
    )
    low_freq_factor: float = Field(
        1.0, gt=0, description="llama3: wavelengths above that MSL over it are scaled wholly"
    )
    high_freq_factor: float = Field(
        4.0, gt=0, description="llama3: wavelengths below that MSL over it stay"
    )
    beta_fast: float = Field(
        32.0, gt=0, description="yarn: units that turn more often than this within that MSL stay"
    )
    beta_slow: float = Field(
        1.0, gt=0, description="yarn: units that turn less often are scaled wholly"
    )


class ExpertsConfig(FrozenModel):
    """Section `model.moe`: a mixture of experts instead of every feed-forward layer."""

    num_experts: int = Field(ge=2, description="experts that the router chooses from")
    top_k: Count = Field(1, description="experts that it chooses for every token")
    num_shared_experts: int = Field(0, ge=0, description="experts that every token has besides")
    load_balancing_loss_coef: Rate = Field(
        0.0, description="weight of the loss that keeps experts busy alike, in training"
    )
    expert_weighting_normalization: bool = Field(
        True, description="divide the probabilities of the chosen experts by their sum"
    )
    null_expert_bias: Rate = Field(
        0.0, description="added to that sum; lets the router learn with top_k: 1"
    )

    @model_validator(mode="after")
    def _possible(self) -> "ExpertsConfig":
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} is larger than num_experts {self.num_experts}")
        if self.null_expert_bias and not self.expert_weighting_normalization:
            raise ValueError("null_expert_bias needs expert_weighting_normalization: true")
        return self

    @property
    def stored_experts(self) -> int:
        """Experts in all."""
        return self.num_experts + self.num_shared_experts

    @property
    def active_experts(self) -> int:
        """Experts that compute for a token."""
        return self.top_k + self.num_shared_experts


_OF_ENCODER_DECODERS = {
    "bidirectional": True,
    "position_embedding_type": "relative",
    "norm_first": True,
    "norm_first_sandwich": False,
    "parallel_block": False,
    "embedding_layer_norm": False,
    "attention_qk_norm_layer": None,
    "attention_logit_softcapping": None,
    "moe": None,
}
"""The values that an encoder and a decoder have of these keys."""


class ModelConfig(FrozenModel):
    """Section `model`: a decoder, of which GPT-2, GPT-J, GPT-NeoX, Llama, Mistral, Mixtral,
    Gemma 2, Qwen, MPT and BLOOM are forms; an encoder (BERT); or an encoder and a decoder that
    reads what it says (T5)."""

    vocab_size: Count = Field(description="size of the vocabulary; must equal that of the data set")
    max_position_embeddings: Count = Field(
        description="MSL in tokens; must equal that of the data set. Of T5: tokens that the "
        "encoder reads, which are those that corrupt_spans leaves of a row, and sentinels"
    )
    hidden_size: Count = Field(description="width of the residual stream")
    num_hidden_layers: Annotated[Count, Field(le=1 << 16)] = Field(description="number of blocks")
    num_heads: Count = Field(
        description="number of attention heads; must divide hidden_size or attention_inner_dim"
    )
    filter_size: Count = Field(
        description="width of the feed-forward layer; with swiglu, the width of each of its "
        "branches"
    )
    decoder_num_hidden_layers: Count | None = Field(
        None,
        description="blocks of a decoder that reads what an encoder of num_hidden_layers says, and "
        "is trained with data_transforms: corrupt_spans (T5); null: none",
    )
    tgt_max_position_embeddings: Count | None = Field(
        None, description="tokens that this decoder reads and tells"
    )
    position_embedding_type: Literal["learned", "fixed", "rotary", "alibi", "relative"] = Field(
        "learned",
        description="fixed: sine and cosine; relative: a learned bias for every head and bucket of "
        "distances, one for all blocks of the encoder and one of the decoder (T5)",
    )
    relative_attention_num_buckets: int = Field(
        32, ge=4, multiple_of=4, description="buckets of distances (relative)"
    )
    relative_attention_max_distance: Count = Field(
        128, description="from this distance on all are in one bucket (relative)"
    )
    rotary_dim: int | None = Field(
        None, ge=2, description="number of leading units of a head that are rotated; null: all"
    )
    rope_theta: float = Field(10000.0, gt=0, description="base of the rotary wavelengths")
    pos_scaling_factor: float = Field(
        1.0, ge=1, description="how many times as long as before texts are (rotary)"
    )
    pos_scaling_type: Literal["linear", "llama3", "yarn"] = Field(
        "linear",
        description="linear: positions are divided by pos_scaling_factor; llama3, yarn: only "
        "rotations of long wavelengths are slowed down",
    )
    pos_scaling_extra_args: PositionScaling = PositionScaling()
    rotary_interleaved: bool = Field(
        False,
        description="rotate neighbouring units (GPT-J), not the two halves (NeoX, Llama) (ours)",
    )
    norm_type: Literal["layernorm", "biasless-layernorm", "rmsnorm"] = Field(
        "layernorm", description="norm in every block and before the read-out"
    )
    norm_first: bool = Field(
        True, description="false: a norm behind every sum of a block instead (BERT)"
    )
    norm_first_sandwich: bool = Field(
        False, description="a norm behind every branch of a block too (Gemma 2)"
    )
    embedding_layer_norm: bool = Field(
        False, description="a norm of norm_type on the embeddings (BLOOM, BERT)"
    )
    share_embedding_weights: bool = Field(
        True, description="use the token embedding as the read-out matrix"
    )
    bidirectional: bool = Field(
        False,
        description="tokens attend to later ones of their document too: an encoder, which is "
        "trained with data_transforms: mask_tokens (ours)",
    )
    mlm_head: bool = Field(
        False,
        description="a dense layer with the nonlinearity before the last norm; the head of BERT "
        "(ours)",
    )
    attention_type: Literal["scaled_dot_product", "dot_product"] = Field(
        "scaled_dot_product", description="dot_product: logits are not scaled"
    )
    scale_qk_dot_by_d: bool = Field(
        False, description="divide logits by the width of a head, not by its square root (muP)"
    )
    attention_logits_alpha: float = Field(1.0, gt=0, description="factor for attention logits")
    attention_logit_softcapping: float | None = Field(
        None, gt=0, description="c: attention logits become c tanh(logits / c) (Gemma 2)"
    )
    attention_inner_dim: Count | None = Field(
        None, description="width of all heads together; null: hidden_size"
    )
    attention_qk_norm_layer: Literal["layernorm", "biasless-layernorm", "rmsnorm"] | None = Field(
        None, description="norm of every head of Q and K, before the rotation (Qwen 3)"
    )
    attention_qk_norm_eps: float = Field(
        1e-5, gt=0, description="added to the variance in that norm"
    )
    attention_sliding_window_length: Count | None = Field(
        None, description="a token attends to this many last ones, itself included; null: to all"
    )
    sliding_window_every_other_decoder_layer: bool = Field(
        False, description="every other block attends to all earlier tokens"
    )
    sliding_window_every_other_decoder_layer_pattern: Literal[
        "full_attention_first", "sliding_window_first"
    ] = Field("full_attention_first", description="whether block 0 has the window")
    attention_sink_tokens: Count | None = Field(
        None, description="a window lets a token see this many first ones too"
    )
    attention_module: Literal["aiayn_attention", "multiquery_attention"] = Field(
        "aiayn_attention", description="multiquery_attention: fewer K and V heads than Q heads"
    )
    extra_attention_params: ExtraAttention = ExtraAttention()
    parallel_block: bool = Field(
        False, description="attention and feed-forward read the same input (GPT-J, NeoX) (ours)"
    )
    use_untied_layer_norm: bool = Field(
        True, description="false: one norm for both branches of a parallel block (GPT-J)"
    )
    nonlinearity: Literal["gelu", "gelu_new", "relu", "swiglu", "geglu", "geglu_new"] = Field(
        "gelu",
        description="gelu_new: the tanh form of gelu; swiglu, geglu and geglu_new (ours): gated by "
        "silu, gelu and gelu_new",
    )
    moe: ExpertsConfig | None = Field(None, description="a mixture of experts; null: none")
    use_projection_bias_in_attention: bool = Field(
        True, description="bias in the Q, K and V projections"
    )
    use_ffn_bias_in_attention: bool = Field(True, description="bias in the attention output")
    use_ffn_bias: bool = Field(True, description="bias in the feed-forward layers")
    use_bias_in_output: bool = Field(False, description="bias in the read-out")
    dropout_rate: Probability = Field(
        0.0, description="dropout of embeddings, attention and residuals"
    )
    embedding_dropout_rate: Probability | None = Field(
        None, description="dropout after the embeddings; null: dropout_rate"
    )
    attention_dropout_rate: Probability | None = Field(
        None, description="dropout of attention weights; null: dropout_rate"
    )
    residual_dropout_rate: Probability | None = Field(
        None, description="dropout of both branches of a block; null: dropout_rate"
    )
    layer_norm_epsilon: float = Field(1e-5, gt=0, description="added to the variance in a norm")
    embedding_initializer: Initializer = Field(
        TruncatedNormal(std=0.02),
        description="initializer of token embeddings and learned position embeddings",
    )
    initializer: Initializer = Field(
        TruncatedNormal(std=0.02),
        description="initializer of all other matrices; with muP, that of the proxy",
    )
    output_layer_initializer: Initializer | None = Field(
        None,
        description="initializer of the last layer of each residual branch; default: as "
        "initializer, with the standard deviation divided by sqrt(2 num_hidden_layers)",
    )
    mup_base_hidden_size: Count | None = Field(
        None, description="hidden_size of the tuned proxy (muP); null: standard parametrization"
    )
    mup_base_filter_size: float | None = Field(
        None, gt=0, description="filter_size of the tuned proxy; null: in proportion to hidden_size"
    )
    embeddings_scale: float = Field(1.0, gt=0, description="m_emb: factor for the embeddings (muP)")
    output_logits_alpha: float | None = Field(
        None, gt=0, description="factor for the logits, in addition to 1 / m_width (muP)"
    )
    output_logits_scale: float = Field(
        1.0,
        gt=0,
        description="factor for the logits; default with muP output_logits_alpha / m_width, and "
        "1 / sqrt(hidden_size) for a tied read-out with decoder_num_hidden_layers",
    )
    final_logit_softcapping: float | None = Field(
        None, gt=0, description="c: logits become c tanh(logits / c) (Gemma 2)"
    )
    loss_scaling: Literal["num_tokens", "batch_size"] = Field(
        "num_tokens",
        description="divide the gradient by the number of tokens that count, or by batch_size / "
        "loss_weight",
    )
    loss_weight: float = Field(1.0, gt=0, description="used with loss_scaling: batch_size only")
    mixed_precision: bool = Field(
        False,
        description="compute in fp16_type; false: in fp32. Master weights and sums are always fp32",
    )
    fp16_type: Literal["bfloat16", "float16", "cbfloat16_exact"] = Field(
        "bfloat16",
        description="half precision to compute in, with mixed_precision: true; cbfloat16 is read "
        "as bfloat16, and cbfloat16_exact emulates its values, slowly",
    )

    @model_validator(mode="before")
    @classmethod
    def _derived_from_mup(cls, value: Any) -> Any:
        """With muP (P Table 14), attention logits are divided by the width of a head, and logits
        are scaled by output_logits_alpha / m_width, unless the keys for it say otherwise."""
        if not isinstance(value, dict):
            return value
        base, width = value.get("mup_base_hidden_size"), value.get("hidden_size")
        if not (isinstance(base, int) and isinstance(width, int) and base > 0 and width > 0):
            return value
        alpha = value.get("output_logits_alpha")
        factor = alpha if isinstance(alpha, int | float) else 1.0
        derived = {"scale_qk_dot_by_d": True, "output_logits_scale": factor * base / width}
        return {**derived, **value}

    @model_validator(mode="before")
    @classmethod
    def _scaled_when_tied(cls, value: Any) -> Any:
        """A decoder behind an encoder reads out with the token embedding, over sqrt(hidden_size):
        T5 (arXiv 1910.10683), where embeddings have deviation 1."""
        if not isinstance(value, dict) or value.get("decoder_num_hidden_layers") is None:
            return value
        width = value.get("hidden_size")
        if value.get("share_embedding_weights") is False or not isinstance(width, int) or width < 1:
            return value
        return {"output_logits_scale": width**-0.5, **value}

    @model_validator(mode="after")
    def _possible(self) -> "ModelConfig":
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        width = "hidden_size" if self.attention_inner_dim is None else "attention_inner_dim"
        groups, head = self.extra_attention_params.num_kv_groups, self.head_size
        kind, rotated = self.position_embedding_type, self.rotary_dim or self.head_size
        if self.attention_width % self.num_heads:
            yield f"{width} {self.attention_width} is not a multiple of num_heads {self.num_heads}"
        if self.attention_module == "aiayn_attention" and groups != 1:
            yield f"num_kv_groups {groups} needs attention_module: multiquery_attention"
        if self.num_heads % groups:
            yield f"num_heads {self.num_heads} is not a multiple of num_kv_groups {groups}"
        if self.scale_qk_dot_by_d and self.attention_type != "scaled_dot_product":
            yield "scale_qk_dot_by_d: true needs attention_type: scaled_dot_product"
        if self.norm_first_sandwich and self.parallel_block:
            yield "norm_first_sandwich: true needs parallel_block: false"
        if not (self.parallel_block or self.use_untied_layer_norm):
            yield "use_untied_layer_norm: false needs parallel_block: true"
        if kind == "rotary" and rotated % 2:
            yield (
                f"rotary_dim {rotated} is odd; expected an even number, because units are rotated "
                "in pairs"
            )
        if kind == "rotary" and rotated > head:
            yield (
                f"rotary_dim {self.rotary_dim} is larger than a head: {width} / num_heads = {head}"
            )
        yield from self._scaling_problems()
        yield from self._window_problems()
        yield from self._encoder_problems()
        yield from self._encoder_decoder_problems()
        if kind == "fixed" and self.hidden_size % 2:
            yield f"hidden_size {self.hidden_size} is odd; fixed positions need an even number"
        if self.mup_base_hidden_size is None:
            for key in ("mup_base_filter_size", "output_logits_alpha"):
                if getattr(self, key) is not None:
                    yield f"{key} is for muP only: give mup_base_hidden_size too"
        elif not isinstance(self.initializer, TruncatedNormal | Normal):
            yield (
                f"initializer: {self.initializer.name} has no muP form; expected truncated_normal "
                "or normal"
            )

    def _scaling_problems(self) -> Iterator[str]:
        if self.pos_scaling_factor == 1.0:
            return
        args = self.pos_scaling_extra_args
        if self.position_embedding_type != "rotary":
            yield (
                f"pos_scaling_factor {self.pos_scaling_factor:g} needs position_embedding_type: "
                "rotary"
            )
        if self.pos_scaling_type != "linear" and args.original_max_position_embeddings is None:
            yield (
                f"pos_scaling_type: {self.pos_scaling_type} needs pos_scaling_extra_args: "
                "{original_max_position_embeddings: ...}"
            )
        if self.pos_scaling_type == "llama3" and args.low_freq_factor >= args.high_freq_factor:
            yield (
                f"low_freq_factor {args.low_freq_factor:g} must be below high_freq_factor "
                f"{args.high_freq_factor:g}"
            )

    def _window_problems(self) -> Iterator[str]:
        if self.attention_sliding_window_length is None:
            for key in ("sliding_window_every_other_decoder_layer", "attention_sink_tokens"):
                if getattr(self, key):
                    yield f"{key} needs attention_sliding_window_length"

    def _encoder_problems(self) -> Iterator[str]:
        """Of what only encoders have, and what only decoders do."""
        if self.mlm_head == self.norm_first:
            yield (
                f"norm_first: {str(self.norm_first).lower()} needs mlm_head: "
                f"{str(not self.norm_first).lower()}: the last norm is that of the head, behind "
                "blocks that end with a norm"
            )
        if self.mlm_head and not self.bidirectional:
            yield "mlm_head: true needs bidirectional: true"
        if self.mlm_head and self.is_gated:
            yield f"mlm_head: true needs a plain nonlinearity, not {self.nonlinearity}"
        if not self.norm_first and (self.norm_first_sandwich or self.parallel_block):
            yield (
                "norm_first: false needs norm_first_sandwich: false and parallel_block: false: a "
                "norm follows each of two sums"
            )
        if not self.bidirectional:
            return
        if self.position_embedding_type == "alibi":
            yield "bidirectional: true needs other positions than alibi, which looks back only"
        if self.attention_sliding_window_length is not None:
            yield "bidirectional: true needs attention_sliding_window_length: null"
        if self.mup_base_hidden_size is not None:
            yield "bidirectional: true needs mup_base_hidden_size: null"

    def _encoder_decoder_problems(self) -> Iterator[str]:
        """Of a decoder that reads what an encoder says, and of what only that has."""
        relative = self.position_embedding_type == "relative"
        if self.decoder_num_hidden_layers is None:
            if relative:
                yield "position_embedding_type: relative needs decoder_num_hidden_layers"
            if self.tgt_max_position_embeddings is not None:
                yield "tgt_max_position_embeddings needs decoder_num_hidden_layers"
            return
        if self.tgt_max_position_embeddings is None:
            yield "decoder_num_hidden_layers needs tgt_max_position_embeddings"
        for key, value in _OF_ENCODER_DECODERS.items():
            if getattr(self, key) != value:
                words = {None: "null", True: "true", False: "false"}
                shown = words.get(value, value)  # type: ignore[call-overload]
                yield f"decoder_num_hidden_layers needs {key}: {shown}"
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 2:
            yield (
                f"relative_attention_max_distance {self.relative_attention_max_distance} must be "
                "above half of relative_attention_num_buckets, "
                f"{self.relative_attention_num_buckets}: distances below that have a bucket each"
            )

    @property
    def precision(self) -> Precision:
        """What the wafers compute in."""
        if not self.mixed_precision:
            return "float32"
        return "cbfloat16" if self.fp16_type == "cbfloat16_exact" else self.fp16_type

    @property
    def positions(self) -> int:
        """Tokens that a sample has: those read and, with an encoder and a decoder, those told."""
        return self.max_position_embeddings + (self.tgt_max_position_embeddings or 0)

    @property
    def attention_width(self) -> int:
        """Width of all heads of Q together."""
        return self.attention_inner_dim or self.hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.attention_width // self.num_heads

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layer has a second matrix that gates the first."""
        return self.nonlinearity in ("swiglu", "geglu", "geglu_new")

    def has_window(self, layer: int) -> bool:
        """Whether block `layer` attends to a sliding window alone."""
        if self.attention_sliding_window_length is None:
            return False
        if not self.sliding_window_every_other_decoder_layer:
            return True
        first = self.sliding_window_every_other_decoder_layer_pattern == "sliding_window_first"
        return (layer % 2 == 0) == first

    @property
    def num_kv_heads(self) -> int:
        """Heads of K and of V."""
        if self.attention_module == "aiayn_attention":
            return self.num_heads
        return self.extra_attention_params.num_kv_groups

    @property
    def m_width(self) -> float:
        """Width over the width of the muP proxy (P Table 14); 1 without muP."""
        base = self.mup_base_hidden_size
        return 1.0 if base is None else self.hidden_size / base
