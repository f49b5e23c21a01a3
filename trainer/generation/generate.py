"""Tokens that continue a prompt, one after the other."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pipeline.core import rng
from trainer.evaluation.loaded import LoadedModel
from trainer.generation.sampling import Sampling, choose
from trainer.model.cache import KVCache


def continuation(
    loaded: LoadedModel,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    seed: int,
    ids: int,
) -> Iterator[int]:
    """The ids that follow `prompt`, without end; chosen among the first `ids` of the vocabulary.

    `prompt` has at least one token. Token n is a function of the model, the prompt, `sampling`,
    `seed` and n alone.
    """
    seen = loaded.config.max_position_embeddings
    context, cache = list(prompt), _empty_cache(loaded)
    while True:
        uniform = float(rng.generator(seed, "generate", len(context) - len(prompt)).random())
        new = context[cache.filled :]
        if len(context) > seen:  # every token moves by a position: nothing of a cache holds
            new, cache = context[-seen:], _empty_cache(loaded)
        with torch.inference_mode():
            rows = torch.tensor([new], device=loaded.device)
            logits_V = loaded.model.next_logits(rows, cache)[0, :ids]
        token = choose(logits_V.cpu().numpy().astype(np.float64), sampling, uniform)
        context.append(token)
        yield token


def _empty_cache(loaded: LoadedModel) -> KVCache:
    config = loaded.config
    return KVCache.empty(config, [0], config.max_position_embeddings, loaded.device)
