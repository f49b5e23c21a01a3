"""The decoder family: GPT-2, GPT-J, GPT-NeoX and Llama are configs of it.

Shapes: B sequences, S tokens (MSL), N columns of a cached pass, D hidden size, H heads, V
vocabulary. Sources: Cerebras-GPT (arXiv 2304.03208) section 2, Table 1 and, for muP, Table 14.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from trainer import flops
from trainer.config import ModelConfig
from trainer.model.attention import Attention, Geometry, additive_mask, mask_of_next
from trainer.model.cache import KVCache
from trainer.model.feed_forward import FeedForward
from trainer.model.initialization import initialize
from trainer.model.loss import LabelLosses
from trainer.model.norms import make_norm
from trainer.model.positions import rotation, sinusoids


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)); parallel: both read the first x.

    A parallel block may share one norm between its branches.
    """

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

    `gpt_shape`: as the performance model reads it.
    """

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
        self.gpt_shape = flops.shape(config)
        initialize(self, config, seed)

    def logits(
        self,
        input_ids_BS: Tensor,
        *,
        position_ids_BS: Tensor | None = None,
        attention_span_BS: Tensor | None = None,
    ) -> Tensor:
        """(B, S) integer token ids -> (B, S, V).

        `attention_span_BS` and `position_ids_BS` are those of packed rows (`trainer.model.vsl`);
        without them a row is one segment that begins at position 0.
        """
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
        """(B, N) integer token ids, the columns of texts that follow those in `cache` -> (B, V),
        logits of the tokens after them. The cache takes the columns up.

        First all columns of the prompts, pads before the shorter ones, then as many as are new.
        Equal to the last column of `logits` but for rounding.
        """
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

        `batch` has the features of `pipeline.hdf5.format`: input_ids and labels (B, S) int64, and
        attention_mask (B, S), the loss mask: 1 where the label counts; of packed rows also
        attention_span and position_ids.
        """
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
        """Heads that ALiBi biases."""
        return self.config.num_heads if self.config.position_embedding_type == "alibi" else 0

    def _geometry(self, mask: Tensor | None, dtype: torch.dtype, positions: Tensor) -> Geometry:
        """Made once per forward pass, for all layers."""
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
