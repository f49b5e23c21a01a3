"""Scores, against one plain forward pass for every text."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from trainer.evaluation.scoring import rolling_windows, score_all, score_text
from trainer.generation.loaded import LoadedModel

from .conftest import MSL


def plain(loaded: LoadedModel, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Token by token: each from the last MSL tokens that the whole text has room for."""
    whole = [*context, *continuation][-(MSL + 1) :]
    inputs = torch.tensor([whole[:-1]])
    with torch.no_grad():
        nats_SV = loaded.model.logits(inputs)[0].double().log_softmax(-1)
    total, greedy = 0.0, True
    first = len(whole) - len(continuation)
    for place, token in enumerate(whole[first:], first):
        total += float(nats_SV[place - 1, token])
        greedy &= int(nats_SV[place - 1].argmax()) == token
    return total, greedy


def texts(seed: int = 1) -> list[tuple[list[int], list[int]]]:
    """Of many lengths, some longer than the MSL."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [(1, 1), (3, 5), (1, MSL), (MSL, 4), (MSL + 9, 3), (60, MSL), (2, 2), (7, 1)]
    ids = [torch.randint(0, 258, (a + b,), generator=generator).tolist() for a, b in lengths]
    return [(row[:a], row[a:]) for row, (a, _) in zip(ids, lengths, strict=True)]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_scores_are_those_of_a_plain_forward(loaded: LoadedModel, batch_size: int) -> None:
    found = score_all(loaded, texts(), batch_size)
    for (context, continuation), score in zip(texts(), found, strict=True):
        wanted, greedy = plain(loaded, context, continuation)
        assert score.logprob == pytest.approx(wanted, rel=1e-5)
        assert score.is_greedy == greedy


def test_the_likeliest_text_is_greedy(loaded: LoadedModel) -> None:
    ids = [5, 6]
    for _ in range(4):
        with torch.no_grad():
            ids.append(int(loaded.model.logits(torch.tensor([ids]))[0, -1].argmax()))
    changed = [*ids[:-1], (ids[-1] + 1) % 258]
    first, second = score_all(loaded, [(ids[:2], ids[2:]), (ids[:2], changed[2:])])
    assert first.is_greedy and not second.is_greedy
    assert first.logprob > second.logprob


def test_what_cannot_be_scored_is_refused(loaded: LoadedModel) -> None:
    for text in (([], [1]), ([1], [])):
        with pytest.raises(InputError, match="one token of context"):
            score_all(loaded, [text])
    with pytest.raises(
        InputError, match=f"has {MSL + 1} tokens, but the model reads at most {MSL}"
    ):
        score_all(loaded, [([1], [2] * (MSL + 1))])
    assert score_all(loaded, []) == []


@given(st.integers(1, 70), st.integers(1, 9))
def test_windows_predict_every_token_once(count: int, length: int) -> None:
    ids = list(range(1, count + 1))
    windows = list(rolling_windows(ids, 0, length))
    assert [token for _, continuation in windows for token in continuation] == ids
    whole = [0, *ids]
    for context, continuation in windows:
        end = whole.index(continuation[-1])
        seen = [*context, *continuation][:-1]
        assert len(seen) <= length
        assert seen == whole[end - len(seen) : end]
        assert len(seen) == min(length, end)


def test_a_long_text(loaded: LoadedModel) -> None:
    short, long = list(range(1, MSL)), [(7 * i) % 250 for i in range(3 * MSL + 5)]
    assert score_text(loaded, short, 258) == pytest.approx(plain(loaded, [258], short)[0])
    wanted = sum(plain(loaded, list(a), list(b))[0] for a, b in rolling_windows(long, 258, MSL))
    assert score_text(loaded, long, 258, batch_size=2) == pytest.approx(wanted, rel=1e-5)
