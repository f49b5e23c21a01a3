"""Texts begin with the token that documents of the data began with."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from trainer.convert.targets import tokenizer_files
from trainer.evaluation.scoring import likelihoods, score_all
from trainer.generation.loaded import LoadedModel
from trainer.generation.text import (
    GenerationOptions,
    Sampling,
    continuation,
    encode_text,
    generate_text,
)

from ..evaluation.conftest import EOS, write_tokenizer

GREEDY = Sampling(temperature=0.0)
BOS = "<|begin|>"


@pytest.fixture
def begun(tokenizer: TokenizerDefinition) -> TokenizerDefinition:
    """The same ids with `ab` (which the texts here do not hold) as what begins them."""
    return replace(tokenizer, bos_token="ab", bos_id=256)


@pytest.mark.parametrize("prompt", ["cd", ""])
def test_a_prompt(loaded: LoadedModel, begun: TokenizerDefinition, prompt: str) -> None:
    start = [256, *encode_text(begun, prompt)]
    expected = continuation(loaded, start, GREEDY, seed=0, ids=begun.vocab_size)
    made = generate_text(loaded, begun, prompt, GenerationOptions(9, GREEDY))
    assert list(made.ids) == list(itertools.islice(expected, len(made.ids)))


def test_what_is_scored(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, begun: TokenizerDefinition
) -> None:
    ids = encode_text(begun, "cdcd")
    assert likelihoods(loaded, begun, ["cdcd"]) == [score_all(loaded, [([256], ids)])[0].logprob]
    assert likelihoods(loaded, begun, ["cdcd"]) != likelihoods(loaded, tokenizer, ["cdcd"])


def test_an_export_says_so(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "tokenizer.json")
    content = json.loads(path.read_text())
    token = {**content["added_tokens"][0], "id": 259, "content": BOS}
    path.write_text(json.dumps({**content, "added_tokens": [*content["added_tokens"], token]}))
    files = tokenizer_files(load_definition(path, EOS, bos=BOS), {"n_positions": 32})
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    assert (theirs.bos_token, theirs.eos_token) == (BOS, EOS)
    assert theirs("cd").input_ids == [259, *encode_text(load_definition(path, EOS), "cd")]
