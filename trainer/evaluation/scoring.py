"""Log-likelihood of a continuation given its context, the core of every task.

Texts are scored with what the model can see: of context and continuation the last MSL + 1 tokens,
of which the last is label only. Rows of a batch are padded on the right; a causal model does not
see pads, so they change no score but by the rounding of another shape.

Shapes: B texts of a batch, S tokens of the longest, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.core.errors import InputError
from pipeline.core.words import pluralise
from trainer.evaluation.loaded import LoadedModel

Ids = Sequence[int]


@dataclass(frozen=True)
class Score:
    """`logprob`: sum over the continuation in nats; `is_greedy`: whether no other token is likelier
    than the one that stands there, at any of its places."""

    logprob: float
    is_greedy: bool


def score_all(
    loaded: LoadedModel,
    texts: Sequence[tuple[Ids, Ids]],
    batch_size: int = 8,
    done: Callable[[int], object] = lambda texts: None,
) -> list[Score]:
    """Score every (context, continuation) of token ids, in the order given.

    Texts run in batches of about the same length, the longest first; `done` hears the number of
    texts of each when it is scored. Raises InputError for a text without context (give EOS) or
    continuation, and for a continuation of more than MSL tokens.
    """
    length = loaded.config.max_position_embeddings
    for context, continuation in texts:
        _check(context, continuation, length)
    order = sorted(range(len(texts)), key=lambda i: -min(_tokens(texts[i]), length + 1))
    scores: dict[int, Score] = {}
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        scores |= zip(batch, _score_batch(loaded, [texts[i] for i in batch]), strict=True)
        done(len(batch))
    return [scores[i] for i in range(len(texts))]


def rolling_windows(ids: Ids, first: int, length: int) -> Iterator[tuple[Ids, Ids]]:
    """(context, continuation) of windows of at most `length` tokens in which every token of a text
    is predicted once; `first` (EOS) stands before it, and the last window sees all it can.

    >>> [(list(a), list(b)) for a, b in rolling_windows([1, 2, 3, 4, 5], 0, 4)]
    [([0], [1, 2, 3, 4]), ([1, 2, 3, 4], [5])]
    """
    whole = [first, *ids]
    for done in range(0, len(ids), length):
        end = min(done + length, len(ids))
        start = max(0, end - length) if done else 0
        yield whole[start : done + 1], whole[done + 1 : end + 1]


def score_text(loaded: LoadedModel, ids: Ids, first: int, batch_size: int = 8) -> float:
    """Log-likelihood in nats of a whole text of any length after `first` (EOS)."""
    windows = list(rolling_windows(ids, first, loaded.config.max_position_embeddings))
    return sum(score.logprob for score in score_all(loaded, windows, batch_size))


def _check(context: Ids, continuation: Ids, length: int) -> None:
    if not context or not continuation:
        raise InputError("a text to score needs at least one token of context and one to score")
    if len(continuation) > length:
        raise InputError(
            f"a continuation has {pluralise(len(continuation), 'token')}, but the model reads at "
            f"most {length:,}: it "
            "cannot be scored as one text"
        )


def _tokens(text: tuple[Ids, Ids]) -> int:
    return len(text[0]) + len(text[1])


def _score_batch(loaded: LoadedModel, texts: Sequence[tuple[Ids, Ids]]) -> list[Score]:
    seen = loaded.config.max_position_embeddings + 1
    whole = [[*context, *continuation][-seen:] for context, continuation in texts]
    rows = [torch.tensor(ids[:-1]) for ids in whole]
    input_ids_BS = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(loaded.device)
    with torch.inference_mode():
        logits_BSV = loaded.model.logits(input_ids_BS)
        return [
            _score(logits_SV[len(ids) - 1 - len(text[1]) : len(ids) - 1], text[1])
            for logits_SV, ids, text in zip(logits_BSV, whole, texts, strict=True)
        ]


def _score(logits_SV: Tensor, continuation: Ids) -> Score:
    labels_S = torch.tensor(continuation, device=logits_SV.device)
    nats_SV = torch.log_softmax(logits_SV.float(), dim=-1)
    label_S = nats_SV.gather(1, labels_S[:, None])[:, 0]
    greedy = bool((label_S == nats_SV.amax(dim=-1)).all())
    return Score(float(label_S.double().sum()), greedy)
