"""The decoder family: GPT-2, GPT-J, GPT-NeoX, Llama, Mistral, Mixtral, Gemma 2, Qwen, MPT and BLOOM
are configs of it; the encoder of BERT, which is the same blocks with another mask, place of norms
and head; that of T5, with a decoder behind it (`trainer.model.encoder_decoder`); and the loss of
every label.

Shapes: B sequences, S tokens (MSL), T of a decoder behind an encoder, N columns of a cached pass, D
hidden size, V vocabulary.
Sources: Cerebras-GPT (arXiv 2304.03208) section 2, Table 1 and, for muP, Table 14; BERT (arXiv
1810.04805), without its segments and next-sentence task, as RoBERTa (arXiv 1907.11692).
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig, model_parameters
from trainer.model.attention import Attention, MaskRule, additive_mask, mask_of_next
from trainer.model.encoder_decoder import Decoder, PositionBias
from trainer.model.forward_pass import Geometry, KVCache, Routing, RoutingLog
from trainer.model.initial_weights import initialize
from trainer.model.layers import Experts, FeedForward, HeadDense, balancing_losses, make_norm
from trainer.model.positions import Rotation, rotation, sinusoids


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); parallel: both read the first x. A
    parallel block may share one norm between its branches; a sandwich has a norm behind each.
    Without norm_first: norm(x + attention(x)), then norm(x + feed_forward(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.parallel, self.norm_first = config.parallel_block, config.norm_first
        shared = self.parallel and not config.use_untied_layer_norm
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = None if shared else make_norm(config)
        moe = config.moe
        self.feed_forward = FeedForward(config) if moe is None else Experts(config, moe)
        sandwich = config.norm_first_sandwich
        self.attention_output_norm = make_norm(config) if sandwich else nn.Identity()
        self.feed_forward_output_norm = make_norm(config) if sandwich else nn.Identity()
        rate = config.residual_dropout_rate
        self.dropout = nn.Dropout(config.dropout_rate if rate is None else rate)

    def forward(self, x_BSD: Tensor, geometry: Geometry) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        if not self.norm_first:
            return self._norm_last(x_BSD, geometry)
        normed_BSD = self.attention_norm(x_BSD)
        branch_BSD = self.attention_output_norm(self.attention(normed_BSD, geometry))
        mixed_BSD = x_BSD + self.dropout(branch_BSD)
        if self.feed_forward_norm is not None:
            normed_BSD = self.feed_forward_norm(x_BSD if self.parallel else mixed_BSD)
        branch_BSD = self.feed_forward_output_norm(self._fed_forward(normed_BSD, geometry))
        total_BSD: Tensor = mixed_BSD + self.dropout(branch_BSD)
        return total_BSD

    def _norm_last(self, x_BSD: Tensor, geometry: Geometry) -> Tensor:
        branch_BSD = self.attention(x_BSD, geometry)
        x_BSD = self.attention_norm(x_BSD + self.dropout(branch_BSD))
        branch_BSD = self._fed_forward(x_BSD, geometry)
        assert self.feed_forward_norm is not None, "only parallel blocks share a norm"
        total_BSD: Tensor = self.feed_forward_norm(x_BSD + self.dropout(branch_BSD))
        return total_BSD

    def _fed_forward(self, x_BSD: Tensor, geometry: Geometry) -> Tensor:
        layer = self.feed_forward
        routed = (geometry.routed,) if isinstance(layer, Experts) else ()
        out_BSD: Tensor = layer(x_BSD, *routed)
        return out_BSD


class LabelLosses(nn.Module):
    """Cross-entropy in nats, (B, S, V) logits and a batch -> (B * S,), masked labels included. A
    module of its own, so that an evaluation can look at every label by a forward hook."""

    def forward(self, logits_BSV: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """`batch` has labels (B, S) int64, and whatever a hook looks for."""
        return F.cross_entropy(
            logits_BSV.flatten(0, 1), batch["labels"].flatten(), reduction="none"
        )


class GPT(nn.Module):
    """The decoder, or encoder, or both, with its loss. Weights are a function of (config, seed,
    parameter name). `gpt_shape`: as the performance model reads it."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        super().__init__()
        width, vocabulary = config.hidden_size, config.vocab_size
        self.config = config
        self.token_embedding = nn.Embedding(vocabulary, width)
        if config.position_embedding_type == "learned":
            self.position_embedding = nn.Embedding(config.max_position_embeddings, width)
        relative = config.position_embedding_type == "relative"
        self.position_bias = PositionBias(config, causal=False) if relative else None
        self.embedding_norm = make_norm(config) if config.embedding_layer_norm else nn.Identity()
        rate = config.embedding_dropout_rate
        self.dropout = nn.Dropout(config.dropout_rate if rate is None else rate)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        behind = config.decoder_num_hidden_layers
        self.decoder = None if behind is None else Decoder(config, behind)
        self.head_dense = HeadDense(config) if config.mlm_head else nn.Identity()
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
        decoder_input_ids_BT: Tensor | None = None,
    ) -> Tensor:
        """(B, S) integer token ids -> (B, S, V). Packed rows have `attention_span_BS` and
        `position_ids_BS`; without them a row is one segment that begins at position 0. A decoder
        behind an encoder has `decoder_input_ids_BT`, whose logits (B, T, V) are."""
        return self._routed_logits(
            input_ids_BS, position_ids_BS, attention_span_BS, decoder_input_ids_BT
        )[0]

    def _routed_logits(
        self,
        input_ids_BS: Tensor,
        positions: Tensor | None,
        attention_span_BS: Tensor | None,
        decoder_input_ids_BT: Tensor | None = None,
    ) -> tuple[Tensor, list[Routing]]:
        """`logits`, and what the routers of mixtures of experts decided, layer by layer."""
        x_BSD, routed = self._through_blocks(input_ids_BS, positions, attention_span_BS)
        if self.decoder is not None:
            assert decoder_input_ids_BT is not None, "a decoder reads tokens of its own"
            x_BSD = self._decoded(x_BSD, decoder_input_ids_BT)
        return self._read(x_BSD), routed

    def _through_blocks(
        self, input_ids_BS: Tensor, positions: Tensor | None, attention_span_BS: Tensor | None
    ) -> tuple[Tensor, list[Routing]]:
        if positions is None:
            positions = torch.arange(input_ids_BS.shape[1], device=input_ids_BS.device)
        x_BSD = self.dropout(self._embedded(input_ids_BS, positions))
        turn, routed = self._rotation(positions), RoutingLog()
        mask_of = {
            windowed: self._as(x_BSD, additive_mask(x_BSD, attention_span_BS, positions, rule))
            for windowed, rule in self._mask_rules.items()
        }
        if self.position_bias is not None:
            mask_of = {False: self._as(x_BSD, self.position_bias(x_BSD.shape[1]))}
        for index, block in enumerate(self.blocks):
            mask = mask_of[self.config.has_window(index)]
            x_BSD = block(x_BSD, Geometry(mask, turn, routed=routed))
        return x_BSD, routed.close()

    def _decoded(self, encoder_x_BSD: Tensor, decoder_input_ids_BT: Tensor) -> Tensor:
        assert self.decoder is not None
        positions = torch.arange(decoder_input_ids_BT.shape[1], device=encoder_x_BSD.device)
        embedded_BTD = self._embedded(decoder_input_ids_BT, positions)
        return self.decoder(self.dropout(embedded_BTD), encoder_x_BSD)  # type: ignore[no-any-return]

    def encode(self, input_ids_BS: Tensor) -> Tensor:
        """(B, S) token ids -> (B, S, D), what the decoder behind an encoder reads."""
        return self._through_blocks(input_ids_BS, None, None)[0]

    def told_logits(self, encoder_x_BSD: Tensor, decoder_input_ids_BT: Tensor) -> Tensor:
        """(B, V): logits of the token after those that the decoder has told. Equal to the last
        column of `logits`, except for rounding."""
        return self._read(self._decoded(encoder_x_BSD, decoder_input_ids_BT)[:, -1])

    def next_logits(self, input_ids_BN: Tensor, cache: KVCache) -> Tensor:
        """(B, N) integer token ids, the columns that follow those in `cache`, which takes them
        up -> (B, V), logits of the tokens after them. First all columns of the prompts, pads
        before the shorter ones. Equal to the last column of `logits` except for rounding."""
        first, length = cache.filled, cache.filled + input_ids_BN.shape[1]
        columns_N = torch.arange(first, length, device=input_ids_BN.device)
        positions_BN = (columns_N - cache.pads.unsqueeze(1)).clamp(min=0)
        x_BND = self.dropout(self._embedded(input_ids_BN, positions_BN))
        turn = self._rotation(positions_BN)
        mask_of = {
            windowed: self._as(x_BND, mask_of_next(cache.pads, first, length, rule))
            for windowed, rule in self._mask_rules.items()
        }
        for index, (block, past) in enumerate(zip(self.blocks, cache.layers, strict=True)):
            x_BND = block(x_BND, Geometry(mask_of[self.config.has_window(index)], turn, past))
        return self._read(x_BND[:, -1])

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(sum of the losses of counted labels in nats, number of counted labels); both 0-d.
        `batch` has the features of `pipeline.hdf5.format`: input_ids and labels (B, S) int64,
        and attention_mask (B, S), the loss mask: 1 where the label counts; of packed rows also
        attention_span and position_ids. A decoder behind an encoder has decoder_input_ids (B, T),
        and labels and attention_mask are of its tokens. In training, a mixture of experts adds its
        balancing loss."""
        logits_BSV, routed = self._routed_logits(
            batch["input_ids"],
            batch.get("position_ids"),
            batch.get("attention_span"),
            batch.get("decoder_input_ids"),
        )
        mask_BS = batch["attention_mask"]
        losses = self.label_losses(logits_BSV, batch)
        loss_sum = (losses * mask_BS.flatten().to(losses.dtype)).sum()
        moe = self.config.moe
        if moe is not None and moe.load_balancing_loss_coef > 0 and self.training:
            loss_sum = loss_sum + moe.load_balancing_loss_coef * self._imbalance(routed, mask_BS)
        return loss_sum, mask_BS.sum()

    def _imbalance(self, routed: list[Routing], mask_BS: Tensor) -> Tensor:
        """Sum of the balancing losses of sequences, each times what the loss is divided by: its
        counted labels or, with loss_scaling: batch_size, 1 / loss_weight. So the mean over
        sequences comes out, with num_tokens weighted by their labels."""
        each_B = balancing_losses(routed, mask_BS)
        if self.config.loss_scaling == "batch_size":
            return each_B.sum() / self.config.loss_weight
        return (each_B * mask_BS.sum(1)).sum()

    def _embedded(self, input_ids_BS: Tensor, positions: Tensor) -> Tensor:
        """m_emb * (token + position) (Table 14); rotations and biases come in attention."""
        x_BSD: Tensor = self.token_embedding(input_ids_BS)
        if self.config.position_embedding_type == "learned":
            x_BSD = x_BSD + self.position_embedding(positions)
        elif self.config.position_embedding_type == "fixed":
            x_BSD = x_BSD + sinusoids(positions, self.config.hidden_size).to(x_BSD.dtype)
        return _scaled(self.embedding_norm(x_BSD), self.config.embeddings_scale)

    def _read(self, x: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        normed = self.final_norm(self.head_dense(x))
        logits = _scaled(self.read_out(normed), self.config.output_logits_scale)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @property
    def _mask_rules(self) -> dict[bool, MaskRule]:
        """Of blocks with a sliding window and of others, as far as there are any."""
        kinds = {self.config.has_window(index) for index in range(len(self.blocks))}
        return {kind: MaskRule.of(self.config, windowed=kind) for kind in sorted(kinds)}

    def _as(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """The mask in the dtype that attention needs it in."""
        if mask is None or self.config.precision == "float16":
            return mask
        return mask.to(x.dtype)

    def _rotation(self, positions: Tensor) -> Rotation | None:
        rotary = self.config.position_embedding_type == "rotary"
        return rotation(positions, self.config) if rotary else None


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor
