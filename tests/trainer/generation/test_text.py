"""Text from a tiny model, against a plain loop over its logits."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.generation.loaded import LoadedModel, find_checkpoint, load_model
from trainer.generation.text import (
    GenerationOptions,
    Sampling,
    continuation,
    decode_ids,
    encode_text,
    escape_for_terminal,
    generate_text,
)

from ..evaluation.conftest import EOS, MSL

GREEDY = Sampling(temperature=0.0)


def test_greedy_beyond_the_msl(loaded: LoadedModel) -> None:
    prompt = [3, 1, 4, 1, 5]
    ids = list(prompt)
    for _ in range(MSL + 6):
        with torch.no_grad():
            ids.append(int(loaded.model.logits(torch.tensor([ids[-MSL:]]))[0, -1, :258].argmax()))
    tokens = continuation(loaded, prompt, GREEDY, seed=1, ids=258)
    assert list(itertools.islice(tokens, MSL + 6)) == ids[len(prompt) :]


def test_the_seed_decides(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> None:
    wish = GenerationOptions(max_new_tokens=25, seed=4)
    first = generate_text(loaded, tokenizer, "ab", wish)
    torch.manual_seed(99)
    np.random.seed(99)
    assert generate_text(loaded, tokenizer, "ab", wish) == first
    assert (
        generate_text(loaded, tokenizer, "ab", GenerationOptions(max_new_tokens=25, seed=5))
        != first
    )


def test_a_longer_text_begins_with_the_shorter(
    loaded: LoadedModel, tokenizer: TokenizerDefinition
) -> None:
    long = generate_text(loaded, tokenizer, "ab", GenerationOptions(max_new_tokens=12, seed=4))
    short = generate_text(loaded, tokenizer, "ab", GenerationOptions(max_new_tokens=5, seed=4))
    assert long.ids[:5] == short.ids and short.ended == "length"


def silent(model: LoadedModel, token: int) -> LoadedModel:
    """The model with a read-out that always finds `token` the likeliest."""
    with torch.no_grad():
        model.model.final_norm.weight.zero_()
        model.model.final_norm.bias.copy_(model.model.read_out.weight[token] * 100)
        model.model.read_out.weight[token] *= 10
    return model


def test_eos_ends_a_text(make_model: Callable[..., Path], tokenizer: TokenizerDefinition) -> None:
    model = silent(load_model(find_checkpoint(make_model())), tokenizer.eos_id)
    found = generate_text(model, tokenizer, "", GenerationOptions(5, GREEDY))
    assert (found.text, found.ids, found.ended) == ("", (), "eos")


def test_a_stop_string_ends_it_before_itself(
    make_model: Callable[..., Path], tokenizer: TokenizerDefinition
) -> None:
    (letter,) = encode_text(tokenizer, "x")
    model = silent(load_model(find_checkpoint(make_model())), letter)
    found = generate_text(
        model, tokenizer, "ab", GenerationOptions(9, GREEDY, stop=("yy", "xxx", "q"))
    )
    assert (found.text, len(found.ids), found.ended) == ("", 3, "stop")
    assert generate_text(model, tokenizer, "ab", GenerationOptions(4, GREEDY)).text == "xxxx"


def test_ids_that_no_token_has_are_never_chosen(
    make_model: Callable[..., Path], tokenizer: TokenizerDefinition
) -> None:
    """A vocabulary that was padded to more ids than the tokenizer has."""
    model = silent(load_model(find_checkpoint(make_model(vocab_size=300))), 280)
    assert max(generate_text(model, tokenizer, "ab", GenerationOptions(6)).ids, default=0) < 259


@pytest.mark.parametrize("text", ["", "abCD Déjà vu 漢", EOS, "a\x1b[31m"])
def test_text_comes_back(tokenizer: TokenizerDefinition, text: str) -> None:
    ids = encode_text(tokenizer, text)
    assert tokenizer.eos_id not in ids
    assert decode_ids(tokenizer, ids) == text


def test_a_terminal_gets_no_commands() -> None:
    assert escape_for_terminal("a\x1b]0;x\x07\r\n\tb\u202e") == "a\\x1b]0;x\\x07\\r\n\tb\\u202e"
