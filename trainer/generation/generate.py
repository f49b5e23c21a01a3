"""Tokens that go on from a prompt, one after the other."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pipeline.core import rng
from trainer.evaluation.loaded import LoadedModel
from trainer.generation.sampling import Sampling, choose


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
    context = list(prompt)
    while True:
        uniform = float(rng.generator(seed, "generate", len(context) - len(prompt)).random())
        rows = torch.tensor([context[-seen:]], device=loaded.device)
        with torch.inference_mode():
            logits_V = loaded.model.logits(rows)[0, -1, :ids]
        token = choose(logits_V.cpu().numpy().astype(np.float64), sampling, uniform)
        context.append(token)
        yield token
