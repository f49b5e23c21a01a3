"""Models and tokenizers from checkpoints."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.core.errors import ConfigError, InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.generation.loaded import find_checkpoint, load_model, tokenizer_for
from trainer.model import GPT
from trainer.runs import checkpoint
from trainer.runs.checkpoint import Tensors

from .conftest import tiny, write_tokenizer

Make = Callable[..., Path]


@pytest.mark.parametrize("share", [True, False])
def test_the_weights_are_those_of_the_checkpoint(make_model: Make, share: bool) -> None:
    found = find_checkpoint(make_model(share_embedding_weights=share))
    model = load_model(found).model
    wanted = GPT(tiny(share_embedding_weights=share), seed=5)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(model.logits(ids), wanted.eval().logits(ids))
    assert not model.training
    assert (model.read_out.weight is model.token_embedding.weight) == share
    assert found.step == 7


def test_weights_are_fp32_whatever_the_precision_of_training(make_model: Make) -> None:
    ids, found = torch.arange(12)[None], []
    for changes in ({}, {"mixed_precision": True, "fp16_type": "bfloat16"}):
        model = load_model(find_checkpoint(make_model(**changes))).model
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}
        found.append(model.logits(ids))
    assert torch.equal(*found)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a checkpoint nor a model directory"):
        find_checkpoint(tmp_path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    weights = {"token_embedding.weight": torch.zeros(3, 4)}
    state = {"model": tiny().model_dump(mode="json")}
    checkpoint.save_checkpoint(tmp_path, 1, Tensors(weights, {}), state)
    with pytest.raises(InputError, match=r"blocks\.0\.attention\.output\.bias has shape None"):
        load_model(find_checkpoint(tmp_path))


def test_a_config_of_another_release(tmp_path: Path) -> None:
    checkpoint.save_checkpoint(tmp_path, 1, Tensors({}, {}), {"model": {"size": "large"}})
    with pytest.raises(InputError, match="section model does not fit this release"):
        load_model(find_checkpoint(tmp_path))


def test_the_tokenizer(make_model: Make, tokenizer: TokenizerDefinition, tmp_path: Path) -> None:
    """The one named; the one in the model directory; GPT-2's by its size; none."""
    place = make_model()
    found = find_checkpoint(place)
    with pytest.raises(ConfigError, match="the tokenizer is not known"):
        tokenizer_for(None, found)
    (tmp_path / "run").mkdir()
    write_tokenizer(tmp_path / "run" / "tokenizer.json")
    assert tokenizer_for(tmp_path / "run", found) == tokenizer
    write_tokenizer(place / "tokenizer.json")
    assert tokenizer_for(None, found) == tokenizer
    with pytest.raises(ConfigError, match=r"gpt2 has 50,257 ids, but model\.vocab_size"):
        tokenizer_for(Path("gpt2"), found)


def test_gpt2_by_its_size(make_model: Make) -> None:
    model_dir = make_model(vocab_size=50257, hidden_size=2, num_heads=1)
    assert tokenizer_for(None, find_checkpoint(model_dir)).name == "gpt2"
