"""Several prompts gone on from together, each with the likeliest token every time.

Shapes: B texts that go on, N columns of a pass, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from trainer.evaluation.loaded import LoadedModel
from trainer.model.cache import KVCache

_PAD = 0
"""The id of pads, which nothing sees."""
Ended = Literal["eos", "stop", "max_tokens", "msl"]


@dataclass(frozen=True)
class Ending:
    """What ends a continuation: `eos_id`, one of the sequences of ids in `stop`, `max_tokens`
    tokens (None: no such limit), or that prompt and continuation fill the MSL."""

    eos_id: int
    stop: tuple[tuple[int, ...], ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True)
class Continuation:
    """`ids`: what follows the prompt, without the EOS or the sequence that ended it."""

    ids: tuple[int, ...]
    ended: Ended


def continue_greedily(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], ending: Ending, *, ids: int
) -> list[Continuation]:
    """The continuation of every prompt, chosen among the first `ids` of the vocabulary; of equally
    likely ids the lowest.

    A prompt has at least one token and fewer than the MSL. Other prompts beside it change the
    logits of a text in their last bits only.
    """
    length = loaded.config.max_position_embeddings
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    columns = longest + max(_room(prompt, ending, length) for prompt in prompts)
    cache = KVCache.empty(loaded.config, pads, columns, loaded.device)
    new = [[_PAD] * n + list(prompt) for n, prompt in zip(pads, prompts, strict=True)]
    made: list[list[int]] = [[] for _ in prompts]
    found: dict[int, Continuation] = {}
    going = list(range(len(prompts)))
    while going:
        for text, token in zip(going, _likeliest(loaded, new, cache, ids), strict=True):
            made[text].append(token)
            ended = _ended(made[text], len(prompts[text]), ending, length)
            if ended is not None:
                found[text] = ended
        left = [place for place, text in enumerate(going) if text not in found]
        if left and len(left) < len(going):
            cache = cache.only(left)
        going = [going[place] for place in left]
        new = [made[text][-1:] for text in going]
    return [found[text] for text in range(len(prompts))]


def _room(prompt: Sequence[int], ending: Ending, length: int) -> int:
    """Tokens that may follow."""
    room = length - len(prompt)
    return room if ending.max_tokens is None else min(room, ending.max_tokens)


def _likeliest(
    loaded: LoadedModel, new_BN: Sequence[Sequence[int]], cache: KVCache, ids: int
) -> list[int]:
    with torch.inference_mode():
        logits_BV = loaded.model.next_logits(torch.tensor(new_BN, device=loaded.device), cache)
    chosen: list[int] = logits_BV[:, :ids].cpu().numpy().argmax(axis=1).tolist()
    return chosen


def _ended(made: list[int], prompt: int, ending: Ending, length: int) -> Continuation | None:
    """The continuation, when its last token ended it."""
    if made[-1] == ending.eos_id:
        return Continuation(tuple(made[:-1]), "eos")
    for word in ending.stop:
        if tuple(made[-len(word) :]) == word:
            return Continuation(tuple(made[: -len(word)]), "stop")
    if len(made) == ending.max_tokens:
        return Continuation(tuple(made), "max_tokens")
    return Continuation(tuple(made), "msl") if prompt + len(made) == length else None
