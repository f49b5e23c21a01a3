"""Logits and tokens with cached keys and values are those without, for every kind of decoder."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from trainer.config import ModelConfig
from trainer.generation.infer import Continuation, Ending, continue_greedily
from trainer.generation.loaded import LoadedModel
from trainer.generation.text import Sampling, continuation
from trainer.model import GPT
from trainer.model.forward_pass import KVCache

from ..model.conftest import LENGTH, OPTIONS, VOCABULARY, tiny_config

GREEDY = Sampling(temperature=0.0)
ONE_HEAD = {"num_kv_groups": 1}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in OPTIONS},
    "rotary mqa": ("gptj", {"attention_module": "multiquery_attention",
                            "extra_attention_params": ONE_HEAD}),
    "float16": ("btlm", {"mixed_precision": True}),
}  # fmt: skip
"""With one head of K and V under a rotation, and attention that computes in fp32 by itself."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class InMemory:
    """A `LoadedModel` of no checkpoint."""

    model: GPT
    device = CPU

    @property
    def config(self) -> ModelConfig:
        return self.model.config


def random_model(name: str) -> GPT:
    """All weights random and large, and the read-out its own, so that no two tokens are about as
    likely and texts do not repeat one."""
    kind, options = FAMILIES[name]
    model = GPT(tiny_config(kind, **options, share_embedding_weights=False), 1)
    generator = torch.Generator().manual_seed(3)
    for parameter_name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.3 + ("norm.weight" in parameter_name)
    return model.eval().requires_grad_(False)


@pytest.fixture(params=FAMILIES)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return InMemory(random_model(request.param))  # type: ignore[return-value]


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(7))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("passes", [[5] + [1] * 11, [1] * 16, [6, 4, 6], [16]])
def test_logits_of_any_cut_into_passes(loaded: LoadedModel, passes: list[int]) -> None:
    ids_BS = random_ids(2, LENGTH)
    expected_BSV = loaded.model.logits(ids_BS)
    cache = KVCache.empty(loaded.config, [0, 0], LENGTH, CPU)
    for part_BN in ids_BS.split(passes, dim=1):
        logits_BV = loaded.model.next_logits(part_BN, cache)
        close(logits_BV, expected_BSV[:, cache.filled - 1])


def test_logits_of_texts_of_different_lengths(loaded: LoadedModel) -> None:
    """Pads change nothing, whatever stands there; a text that ended may leave."""
    ids_BS, pads = random_ids(3, LENGTH), [0, 4, 9]
    expected = [loaded.model.logits(row[None, n:])[0] for row, n in zip(ids_BS, pads, strict=True)]
    cache = KVCache.empty(loaded.config, pads, LENGTH, CPU)
    texts = [0, 1, 2]
    for part_BN in ids_BS.split([10, 1, 1, 1, 1, 1, 1], dim=1):
        if cache.filled == 12:
            cache, texts = cache.only([0, 2]), [0, 2]
        logits_BV = loaded.model.next_logits(part_BN[texts], cache)
        for logits_V, text in zip(logits_BV, texts, strict=True):
            close(logits_V, expected[text][cache.filled - 1 - pads[text]])


def greedy_without(loaded: LoadedModel, prompt: list[int], count: int) -> list[int]:
    """A plain loop over whole contexts."""
    ids = list(prompt)
    for _ in range(count):
        logits = loaded.model.logits(torch.tensor([ids[-LENGTH:]]))
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", [3, LENGTH, LENGTH + 5])
def test_tokens_up_to_the_msl_and_beyond(loaded: LoadedModel, prompt: int) -> None:
    ids = random_ids(prompt).tolist()
    tokens = continuation(loaded, ids, GREEDY, seed=1, ids=VOCABULARY)
    expected = greedy_without(loaded, ids, LENGTH + 4)
    assert list(itertools.islice(tokens, LENGTH + 4)) == expected
    assert len(set(expected)) > 1


def test_a_batch_goes_on_as_each_prompt_alone(loaded: LoadedModel) -> None:
    prompts = [random_ids(n).tolist() for n in (4, 1, 15, 9, 4)]
    found = continue_greedily(loaded, prompts, Ending(eos_id=-1), ids=VOCABULARY)
    expected = [greedy_without(loaded, prompt, LENGTH - len(prompt)) for prompt in prompts]
    assert found == [Continuation(tuple(ids), "msl") for ids in expected]


def test_each_prompt_ends_for_a_reason_of_its_own(loaded: LoadedModel) -> None:
    prompts = [random_ids(4).tolist(), random_ids(3).tolist()]
    first = greedy_without(loaded, prompts[0], 5)
    place = next(n for n in range(5) if first[n] not in first[:n])
    by_eos = continue_greedily(loaded, prompts, Ending(first[place], (), 5), ids=VOCABULARY)
    assert by_eos[0] == Continuation(tuple(first[:place]), "eos")
    stop = Ending(-1, ((first[0],), tuple(first[:2])), 1)
    by_stop = continue_greedily(loaded, prompts, stop, ids=VOCABULARY)
    assert by_stop[0] == Continuation((), "stop")
    word = first[1:4]
    before = next(n for n in range(2) if first[n : n + 3] == word)
    stop = Ending(-1, (tuple(word), (VOCABULARY,)), 5)
    assert continue_greedily(loaded, prompts[:1], stop, ids=VOCABULARY) == [
        Continuation(tuple(first[:before]), "stop")
    ]
    limited = continue_greedily(loaded, prompts, Ending(-1, (), 2), ids=VOCABULARY)
    assert [each.ended for each in limited] == ["max_tokens"] * 2
    assert limited[0].ids == tuple(first[:2])


def test_training_runs_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass of training neither makes nor reads one."""
    monkeypatch.setattr("trainer.model.forward_pass.LayerCache.extended", None)
    model = GPT(tiny_config("llama"), 1)
    ids_BS = random_ids(2, LENGTH)
    batch = {"input_ids": ids_BS, "labels": ids_BS, "attention_mask": torch.ones_like(ids_BS)}
    loss_sum, _ = model(batch)
    loss_sum.backward()
    with pytest.raises(TypeError):
        model.next_logits(ids_BS, KVCache.empty(model.config, [0, 0], LENGTH, CPU))


def test_sink_tokens_are_those_of_the_prompt() -> None:
    """No tokens are put before a prompt: the first ones of its own are what windows always see."""
    options = {"attention_sliding_window_length": 3, "attention_sink_tokens": 2}
    model = GPT(tiny_config("llama", **options, num_hidden_layers=1), 1).eval()
    ids_BS = random_ids(1, LENGTH)
    with torch.no_grad():
        before = model.logits(ids_BS)[0, -1]
        for place, seen in ((0, True), (1, True), (5, False), (LENGTH - 2, True)):
            other_BS = ids_BS.clone()
            other_BS[0, place] = ids_BS[0, place] % 50 + 1
            assert torch.equal(model.logits(other_BS)[0, -1], before) != seen
