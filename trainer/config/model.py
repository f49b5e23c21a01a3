"""Types that several sections of `params.yaml` share."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config.model import FrozenModel
from wafer_backend.cluster.precision import Precision

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


Fan = Literal["fan_in", "fan_out", "fan_avg"]


class TruncatedNormal(FrozenModel):
    """Normal distribution cut to [a, b]."""

    name: Literal["truncated_normal"] = "truncated_normal"
    mean: float = Field(0.0, description="mean")
    std: float = Field(0.05, gt=0, description="standard deviation before truncation")
    a: float | None = Field(None, description="lower limit; default mean - 2 std")
    b: float | None = Field(None, description="upper limit; default mean + 2 std")


class Normal(FrozenModel):
    """Normal distribution."""

    name: Literal["normal"]
    mean: float = Field(0.0, description="mean")
    std: float = Field(0.05, gt=0, description="standard deviation")


class Uniform(FrozenModel):
    """Uniform distribution on [a, b)."""

    name: Literal["uniform"]
    a: float = Field(-0.05, description="lower bound")
    b: float = Field(0.05, description="upper bound")


class VarianceScaling(FrozenModel):
    """Variance v = scale / fan. normal: deviation sqrt(v), not cut. uniform: bounds
    ± sqrt(3 v). truncated_normal: deviation sqrt(v) / 0.8796 cut to [-2, 2], as in Model Zoo; for
    sqrt(v) far below 1 that cuts nothing."""

    name: Literal["variance_scaling"]
    scale: float = Field(1.0, gt=0, description="variance, multiplied by the fan")
    mode: Fan = Field("fan_in", description="which fan is used")
    distribution: Literal["normal", "truncated_normal", "uniform"] = Field(
        "truncated_normal", description="shape"
    )


class Lecun(FrozenModel):
    """Variance scaling with scale 1 and fan_in: truncated_normal, or uniform."""

    name: Literal["lecun_normal", "lecun_uniform"]


class Xavier(FrozenModel):
    """Variance scaling with scale gain ** 2 and fan_avg: normal, or uniform."""

    name: Literal["xavier_normal", "xavier_uniform", "glorot_normal", "glorot_uniform"]
    gain: float = Field(1.0, gt=0, description="factor for the standard deviation")


class Kaiming(FrozenModel):
    """Variance scaling with scale 2 / (1 + a ** 2), of relu 2: normal, or uniform."""

    name: Literal["kaiming_normal", "kaiming_uniform"]
    a: float = Field(0.0, description="slope of leaky_relu below 0")
    mode: Literal["fan_in", "fan_out"] = Field("fan_in", description="which fan is used")
    nonlinearity: Literal["leaky_relu", "relu"] = Field(
        "leaky_relu", description="nonlinearity that follows"
    )


class Fill(FrozenModel):
    """All weights 0, or all 1."""

    name: Literal["zeros", "ones"]


class ConstantValue(FrozenModel):
    """All weights `val`."""

    name: Literal["constant"]
    val: float = Field(description="the value")


FanScaled = VarianceScaling | Lecun | Xavier | Kaiming
"""Rules whose variance depends on the shape of a matrix."""

Initializer = Annotated[
    TruncatedNormal | Normal | Uniform | FanScaled | Fill | ConstantValue,
    Field(discriminator="name"),
]


class ExtraAttention(FrozenModel):
    """Section `model.extra_attention_params`."""

    num_kv_groups: Count = Field(
        1, description="number of K and V heads, each shared by a group of Q heads"
    )


class ModelConfig(FrozenModel):
    """Section `model`: a decoder of the GPT-2, GPT-J, GPT-NeoX or Llama kind."""

    vocab_size: Count = Field(description="size of the vocabulary; must equal that of the data set")
    max_position_embeddings: Count = Field(
        description="MSL in tokens; must equal that of the data set"
    )
    hidden_size: Count = Field(description="width of the residual stream")
    num_hidden_layers: Count = Field(description="number of decoder blocks")
    num_heads: Count = Field(description="number of attention heads; must divide hidden_size")
    filter_size: Count = Field(
        description="width of the feed-forward layer; with swiglu, the width of each of its "
        "branches"
    )
    position_embedding_type: Literal["learned", "fixed", "rotary", "alibi"] = Field(
        "learned", description="fixed: sine and cosine"
    )
    rotary_dim: int | None = Field(
        None, ge=2, description="number of leading units of a head that are rotated; null: all"
    )
    rope_theta: float = Field(10000.0, gt=0, description="base of the rotary wavelengths")
    rotary_interleaved: bool = Field(
        False,
        description="rotate neighbouring units (GPT-J), not the two halves (NeoX, Llama) (ours)",
    )
    norm_type: Literal["layernorm", "rmsnorm"] = Field(
        "layernorm", description="norm in every block and before the read-out"
    )
    share_embedding_weights: bool = Field(
        True, description="use the token embedding as the read-out matrix"
    )
    attention_type: Literal["scaled_dot_product", "dot_product"] = Field(
        "scaled_dot_product", description="dot_product: logits are not scaled"
    )
    scale_qk_dot_by_d: bool = Field(
        False, description="divide logits by the width of a head, not by its square root (muP)"
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
    nonlinearity: Literal["gelu", "gelu_new", "relu", "swiglu"] = Field(
        "gelu", description="gelu_new: the tanh form of gelu"
    )
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
        description="factor for the logits; with muP, default output_logits_alpha / m_width",
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

    @model_validator(mode="after")
    def _possible(self) -> "ModelConfig":
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        groups, head = self.extra_attention_params.num_kv_groups, self.head_size
        kind, rotated = self.position_embedding_type, self.rotary_dim or self.head_size
        if self.hidden_size % self.num_heads:
            yield f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
        if self.attention_module == "aiayn_attention" and groups != 1:
            yield f"num_kv_groups {groups} needs attention_module: multiquery_attention"
        if self.num_heads % groups:
            yield f"num_heads {self.num_heads} is not a multiple of num_kv_groups {groups}"
        if self.scale_qk_dot_by_d and self.attention_type != "scaled_dot_product":
            yield "scale_qk_dot_by_d: true needs attention_type: scaled_dot_product"
        if not (self.parallel_block or self.use_untied_layer_norm):
            yield "use_untied_layer_norm: false needs parallel_block: true"
        if kind == "rotary" and rotated % 2:
            yield (
                f"rotary_dim {rotated} is odd; expected an even number, because units are rotated "
                "in pairs"
            )
        if kind == "rotary" and rotated > head:
            yield (
                f"rotary_dim {self.rotary_dim} is larger than a head: hidden_size / num_heads = "
                f"{head}"
            )
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

    @property
    def precision(self) -> Precision:
        """What the wafers compute in."""
        if not self.mixed_precision:
            return "float32"
        return "cbfloat16" if self.fp16_type == "cbfloat16_exact" else self.fp16_type

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

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
