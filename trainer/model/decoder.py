"""The decoder family: GPT-2, GPT-J, GPT-NeoX and Llama are configs of it; its norms, its
feed-forward layer, its initial weights and the loss of every label.

Initial weights are a function of (config, seed, parameter name). With L layers, sigma the standard
deviation of `initializer` and m = m_width (1 without muP), matrices inside blocks have sigma /
sqrt(m), and those that end a residual branch sigma / sqrt(2 L m), which `output_layer_initializer`
replaces. Embeddings and an untied read-out are not scaled. The distributions are those of Model
Zoo's `create_initializer` (`trainer.config.model`).

Shapes: B sequences, S tokens (MSL), N columns of a cached pass, D hidden size, F filter size, H
heads, V vocabulary. Sources: Cerebras-GPT (arXiv 2304.03208) section 2, section 2.3 (initial
weights), Table 1 and, for muP, Table 14.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.core.rng import key
from trainer.config import ModelConfig, model_parameters
from trainer.config import model as rules
from trainer.config.model_parameters import fan_in_multiplier, in_block
from trainer.model.attention import (
    Attention,
    Geometry,
    KVCache,
    additive_mask,
    mask_of_next,
    rotation,
    sinusoids,
)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x ** 2) + eps) * weight in fp32, returned as x came (arXiv 1910.07467).
    nn.RMSNorm warns where x is in half precision and the weight, a vector, is not."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        weight_D = self.weight.float()
        return F.rms_norm(x.float(), weight_D.shape, weight_D, self.eps).to(x.dtype)


def make_norm(config: ModelConfig) -> nn.Module:
    """LayerNorm with weight and bias, or RMSNorm with a weight."""
    kind = nn.LayerNorm if config.norm_type == "layernorm" else RMSNorm
    return kind(config.hidden_size, eps=config.layer_norm_epsilon)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """output(f(input(x))); for swiglu output(silu(gate(x)) * input(x)) (arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.filter_size, config.use_ffn_bias
        self.input = nn.Linear(width, inner, bias=bias)
        gated = config.nonlinearity == "swiglu"
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.output = nn.Linear(inner, width, bias=bias)
        self.activation = _ACTIVATIONS[config.nonlinearity]

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        if self.gate is None:
            inner_BSF = self.activation(self.input(x_BSD))
        else:
            inner_BSF = self.activation(self.gate(x_BSD)) * self.input(x_BSD)
        out: Tensor = self.output(inner_BSF)
        return out


class LabelLosses(nn.Module):
    """Cross-entropy in nats, (B, S, V) logits and a batch -> (B * S,), masked labels included. A
    module of its own, so that an evaluation can look at every label by a forward hook."""

    def forward(self, logits_BSV: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """`batch` has labels (B, S) int64, and whatever a hook looks for."""
        return F.cross_entropy(
            logits_BSV.flatten(0, 1), batch["labels"].flatten(), reduction="none"
        )


_CUT_AT_TWO = 0.87962566103423978
"""Standard deviation of a standard normal distribution cut to [-2, 2]."""


def initialize(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Biases 0, norms 1, matrices by their rules, keyed by (seed, parameter name), in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            else:
                generator = torch.Generator().manual_seed(key(seed, "weights", name) >> 65)
                rule = find_initializer(name, config)
                parts: list[Tensor] = [parameter]
                if isinstance(rule, rules.FanScaled) and name.endswith(".qkv.weight"):
                    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
                    rows = [count * config.head_size for count in heads]
                    parts = list(torch.split(parameter, rows))  # matrices of their own
                for part in parts:
                    initialize_matrix(part, rule, generator)


def find_initializer(name: str, config: ModelConfig) -> rules.Initializer:
    """The distribution that the matrix `name` is drawn from."""
    if "embedding" in name:
        return config.embedding_initializer
    if not in_block(name):
        return config.initializer
    width = fan_in_multiplier(name, config)
    if not name.endswith(".output.weight"):
        return narrow_by(config.initializer, math.sqrt(width))
    depth = 2 * config.num_hidden_layers
    given = config.output_layer_initializer
    return given or narrow_by(config.initializer, math.sqrt(depth * width))


def narrow_by(rule: rules.Initializer, by: float) -> rules.Initializer:
    """The same distribution around the same mean, `by` times as narrow; one value stays."""
    match rule:
        case rules.TruncatedNormal():
            cuts = {
                side: rule.mean + (cut - rule.mean) / by
                for side in ("a", "b")
                if (cut := getattr(rule, side)) is not None
            }
            return rule.model_copy(update={"std": rule.std / by, **cuts})
        case rules.Normal():
            return rule.model_copy(update={"std": rule.std / by})
        case rules.Uniform():
            mean, reach = (rule.a + rule.b) / 2, (rule.b - rule.a) / 2 / by
            return rule.model_copy(update={"a": mean - reach, "b": mean + reach})
        case rules.Fill() | rules.ConstantValue():
            return rule
    scaling = as_variance_scaling(rule)
    return scaling.model_copy(update={"scale": scaling.scale / by**2})


def as_variance_scaling(rule: rules.FanScaled) -> rules.VarianceScaling:
    """What a rule by the shape of the matrix is: its scale, fan and distribution."""
    match rule:
        case rules.VarianceScaling():
            return rule
        case rules.Lecun():
            scale, mode, cut = 1.0, "fan_in", "truncated_normal"
        case rules.Xavier():
            scale, mode, cut = rule.gain**2, "fan_avg", "normal"
        case rules.Kaiming():
            slope = 0.0 if rule.nonlinearity == "relu" else rule.a
            scale, mode, cut = 2 / (1 + slope**2), rule.mode, "normal"
    shape = "uniform" if rule.name.endswith("uniform") else cut
    return rules.VarianceScaling.model_validate(
        {"name": "variance_scaling", "scale": scale, "mode": mode, "distribution": shape}
    )


def initialize_matrix(
    tensor: torch.Tensor, rule: rules.Initializer, generator: torch.Generator
) -> None:
    """Draw a whole matrix (outputs, inputs) in place."""
    match rule:
        case rules.TruncatedNormal():
            low = rule.mean - 2 * rule.std if rule.a is None else rule.a
            high = rule.mean + 2 * rule.std if rule.b is None else rule.b
            nn.init.trunc_normal_(tensor, rule.mean, rule.std, low, high, generator=generator)
        case rules.Normal():
            tensor.normal_(rule.mean, rule.std, generator=generator)
        case rules.Uniform():
            tensor.uniform_(rule.a, rule.b, generator=generator)
        case rules.Fill():
            tensor.fill_(1.0 if rule.name == "ones" else 0.0)
        case rules.ConstantValue():
            tensor.fill_(rule.val)
        case _:
            _fill_by_shape(tensor, as_variance_scaling(rule), generator)


def _fill_by_shape(
    tensor: torch.Tensor, rule: rules.VarianceScaling, generator: torch.Generator
) -> None:
    fan_out, fan_in = tensor.shape
    fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[rule.mode]
    std = math.sqrt(rule.scale / max(1.0, fan))
    if rule.distribution == "truncated_normal":
        nn.init.trunc_normal_(tensor, 0.0, std / _CUT_AT_TWO, -2.0, 2.0, generator=generator)
    elif rule.distribution == "normal":
        tensor.normal_(0.0, std, generator=generator)
    else:
        bound = math.sqrt(3) * std
        tensor.uniform_(-bound, bound, generator=generator)


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); parallel: both read the first x. A
    parallel block may share one norm between its branches."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.parallel = config.parallel_block
        shared = self.parallel and not config.use_untied_layer_norm
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = None if shared else make_norm(config)
        self.feed_forward = FeedForward(config)
        rate = config.residual_dropout_rate
        self.dropout = nn.Dropout(config.dropout_rate if rate is None else rate)

    def forward(self, x_BSD: Tensor, geometry: Geometry) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        normed_BSD = self.attention_norm(x_BSD)
        mixed_BSD = x_BSD + self.dropout(self.attention(normed_BSD, geometry))
        if self.feed_forward_norm is not None:
            normed_BSD = self.feed_forward_norm(x_BSD if self.parallel else mixed_BSD)
        total_BSD: Tensor = mixed_BSD + self.dropout(self.feed_forward(normed_BSD))
        return total_BSD


class GPT(nn.Module):
    """The decoder with its loss. Weights are a function of (config, seed, parameter name).
    `gpt_shape`: as the performance model reads it."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        width, vocabulary = config.hidden_size, config.vocab_size
        self.config = config
        self.token_embedding = nn.Embedding(vocabulary, width)
        if config.position_embedding_type == "learned":
            self.position_embedding = nn.Embedding(config.max_position_embeddings, width)
        rate = config.embedding_dropout_rate
        self.dropout = nn.Dropout(config.dropout_rate if rate is None else rate)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.final_norm = make_norm(config)
        self.read_out = nn.Linear(width, vocabulary, bias=config.use_bias_in_output)
        if config.share_embedding_weights:
            self.read_out.weight = self.token_embedding.weight
        self.label_losses = LabelLosses()
        self.gpt_shape = model_parameters.gpt_shape(config)
        initialize(self, config, seed)

    def logits(
        self,
        input_ids_BS: Tensor,
        *,
        position_ids_BS: Tensor | None = None,
        attention_span_BS: Tensor | None = None,
    ) -> Tensor:
        """(B, S) integer token ids -> (B, S, V). Packed rows have `attention_span_BS` and
        `position_ids_BS`; without them a row is one segment that begins at position 0."""
        positions = position_ids_BS
        if positions is None:
            positions = torch.arange(input_ids_BS.shape[1], device=input_ids_BS.device)
        x_BSD = self.dropout(self._embedded(input_ids_BS, positions))
        mask = additive_mask(x_BSD, attention_span_BS, self._alibi_heads)
        geometry = self._geometry(mask, x_BSD.dtype, positions)
        for block in self.blocks:
            x_BSD = block(x_BSD, geometry)
        return _scaled(self.read_out(self.final_norm(x_BSD)), self.config.output_logits_scale)

    def next_logits(self, input_ids_BN: Tensor, cache: KVCache) -> Tensor:
        """(B, N) integer token ids, the columns that follow those in `cache`, which takes them
        up -> (B, V), logits of the tokens after them. First all columns of the prompts, pads
        before the shorter ones. Equal to the last column of `logits` except for rounding."""
        first, length = cache.filled, cache.filled + input_ids_BN.shape[1]
        columns_N = torch.arange(first, length, device=input_ids_BN.device)
        positions_BN = (columns_N - cache.pads.unsqueeze(1)).clamp(min=0)
        x_BND = self.dropout(self._embedded(input_ids_BN, positions_BN))
        mask = mask_of_next(cache.pads, first, length, self._alibi_heads)
        geometry = self._geometry(mask, x_BND.dtype, positions_BN)
        for block, past in zip(self.blocks, cache.layers, strict=True):
            x_BND = block(x_BND, replace(geometry, past=past))
        x_BD = self.final_norm(x_BND[:, -1])
        return _scaled(self.read_out(x_BD), self.config.output_logits_scale)

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(sum of the losses of counted labels in nats, number of counted labels); both 0-d.
        `batch` has the features of `pipeline.hdf5.format`: input_ids and labels (B, S) int64,
        and attention_mask (B, S), the loss mask: 1 where the label counts; of packed rows also
        attention_span and position_ids."""
        logits_BSV = self.logits(
            batch["input_ids"],
            position_ids_BS=batch.get("position_ids"),
            attention_span_BS=batch.get("attention_span"),
        )
        mask_BS = batch["attention_mask"]
        losses = self.label_losses(logits_BSV, batch)
        return (losses * mask_BS.flatten().to(losses.dtype)).sum(), mask_BS.sum()

    def _embedded(self, input_ids_BS: Tensor, positions: Tensor) -> Tensor:
        """m_emb * (token + position) (Table 14); rotations and biases come in attention."""
        x_BSD: Tensor = self.token_embedding(input_ids_BS)
        if self.config.position_embedding_type == "learned":
            x_BSD = x_BSD + self.position_embedding(positions)
        elif self.config.position_embedding_type == "fixed":
            x_BSD = x_BSD + sinusoids(positions, self.config.hidden_size).to(x_BSD.dtype)
        return _scaled(x_BSD, self.config.embeddings_scale)

    @property
    def _alibi_heads(self) -> int:
        return self.config.num_heads if self.config.position_embedding_type == "alibi" else 0

    def _geometry(self, mask: Tensor | None, dtype: torch.dtype, positions: Tensor) -> Geometry:
        config = self.config
        if mask is not None and config.precision != "float16":
            mask = mask.to(dtype)
        if config.position_embedding_type != "rotary":
            return Geometry(mask, None)
        dims = config.rotary_dim or config.hidden_size // config.num_heads
        turn = rotation(positions, dims, config.rope_theta, interleaved=config.rotary_interleaved)
        return Geometry(mask, turn)


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor
