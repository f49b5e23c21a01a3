"""The layers of a block: norms, the feed-forward layer, and a mixture of experts, which are
feed-forward layers of which a router picks a few for every token.

Source of the mixture: Mixtral (arXiv 2401.04088) section 2.1; the loss that keeps experts busy
alike is that of Switch Transformers (arXiv 2101.03961) section 2.2, for `top_k` experts and all
layers together, and for every sequence by itself: so it is a sum over sequences, and its bits are
those of any number of systems.

Shapes: B sequences, S tokens, T = B S, D hidden size, F filter size, E experts, K of them for a
token.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.config.model import ExpertsConfig
from trainer.model.forward_pass import Routing, RoutingLog


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
    """LayerNorm with weight and bias or with a weight alone, or RMSNorm with a weight."""
    return _norm(config.norm_type, config.hidden_size, config.layer_norm_epsilon)


def make_head_norm(config: ModelConfig) -> nn.Module | None:
    """The norm of Q or K, one for all heads, where there is one."""
    kind = config.attention_qk_norm_layer
    if kind is None:
        return None
    return _norm(kind, config.head_size, config.attention_qk_norm_eps)


def _norm(kind: str, width: int, eps: float) -> nn.Module:
    if kind == "rmsnorm":
        return RMSNorm(width, eps)
    return nn.LayerNorm(width, eps=eps, bias=kind == "layernorm")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_new": partial(F.gelu, approximate="tanh"),
}


class HeadDense(nn.Linear):
    """f(W x + b): what an encoder reads its tokens off with, before the last norm (BERT, arXiv
    1810.04805; `transform` in its authors' code)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config.hidden_size, config.hidden_size)
        self.activation = _ACTIVATIONS[config.nonlinearity]

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.activation(super().forward(x))


class FeedForward(nn.Module):
    """output(f(input(x))); of swiglu and the like output(f(gate(x)) * input(x)) (arXiv
    2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.filter_size, config.use_ffn_bias
        self.input = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if config.is_gated else None
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


class Experts(nn.Module):
    """sum over the chosen experts of weight * expert(x), and the shared ones, which all tokens
    have. Weights are the router's probabilities, divided by their sum and `null_expert_bias`."""

    def __init__(self, config: ModelConfig, rule: ExpertsConfig) -> None:
        super().__init__()
        self.rule = rule
        self.router = nn.Linear(config.hidden_size, rule.num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(rule.stored_experts))

    def forward(self, x_BSD: Tensor, routed: RoutingLog) -> Tensor:
        """(B, S, D) -> (B, S, D); tells `routed` what the router decided."""
        x_TD = x_BSD.flatten(0, 1)
        probabilities_TE = self.router(x_TD).float().softmax(-1)
        weight_TK, chosen_TK = probabilities_TE.topk(self.rule.top_k)
        if self.rule.expert_weighting_normalization:
            total_T1 = weight_TK.sum(-1, keepdim=True) + self.rule.null_expert_bias
            weight_TK = weight_TK / total_T1
        batch = x_BSD.shape[:2]
        routed.add(Routing(probabilities_TE.view(*batch, -1), chosen_TK.view(*batch, -1)))
        each_TKD = self._each(x_TD, chosen_TK)
        mixed_TD: Tensor = (each_TKD * weight_TK.unsqueeze(-1).to(each_TKD.dtype)).sum(1)
        for shared in list(self.experts)[self.rule.num_experts :]:
            mixed_TD = mixed_TD + shared(x_TD)
        return mixed_TD.view(*batch, -1)

    def _each(self, x_TD: Tensor, chosen_TK: Tensor) -> Tensor:
        """What every chosen expert makes of a token, (T, K, D). An expert reads its tokens at once;
        one without any reads none, so that its weights have gradients too, which are 0. Rows are
        only permuted, never added up, so the order of sums is fixed on every device."""
        order = chosen_TK.flatten().argsort(stable=True)
        counts = chosen_TK.flatten().bincount(minlength=self.rule.num_experts).tolist()
        rows = x_TD.unsqueeze(1).expand(*chosen_TK.shape, -1).flatten(0, 1)
        parts = torch.split_with_sizes(rows.index_select(0, order), counts)
        out = torch.cat([e(part) for e, part in zip(self.experts, parts, strict=False)])
        return out.index_select(0, order.argsort()).view(*chosen_TK.shape, -1)


def balancing_losses(routed: Sequence[Routing], mask_BS: Tensor) -> Tensor:
    """(B,) fp32: E * sum over experts of (share of the counted tokens that chose it) * (its mean
    probability), both means over layers. `top_k` where all experts are used alike; 0 for a sequence
    without counted tokens."""
    experts = routed[0].probabilities.shape[-1]
    counted_BS1 = mask_BS.to(torch.float32).unsqueeze(-1)
    total_B1 = counted_BS1.sum(1).clamp(min=1.0)
    chosen_BSE = [F.one_hot(each.chosen, experts).sum(2).to(torch.float32) for each in routed]
    share_BE = sum((c * counted_BS1).sum(1) for c in chosen_BSE) / total_B1 / len(routed)
    mean_BE = sum((r.probabilities * counted_BS1).sum(1) for r in routed) / total_B1 / len(routed)
    return experts * (share_BE * mean_BE).sum(-1)
