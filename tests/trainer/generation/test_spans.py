"""A T5 tells spans: tokens next to a loop over all logits, sentinels of both kinds, what is
refused; `transformers` judges in `tests/trainer/convert/test_encoder_decoder.py`."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError
from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from trainer.cli import app
from trainer.commands.options import read_model
from trainer.config import ModelConfig
from trainer.convert import targets, wrap_tensors
from trainer.generation.loaded import LoadedModel
from trainer.generation.spans import Sentinels
from trainer.generation.text import (
    GenerationOptions,
    Sampling,
    encode_text,
    generate_text,
    tell_spans,
)
from trainer.model import GPT
from trainer.runs.checkpoint import Checkpoint

GREEDY = GenerationOptions(max_new_tokens=6, sampling=Sampling(temperature=0))


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerDefinition:
    return load_definition("gpt2")


@pytest.fixture(scope="module")
def loaded(tokenizer: TokenizerDefinition) -> LoadedModel:
    section: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size + 3, "hidden_size": 16, "num_heads": 2,
        "num_hidden_layers": 2, "filter_size": 32, "max_position_embeddings": 16,
        "bidirectional": True, "decoder_num_hidden_layers": 2, "tgt_max_position_embeddings": 8,
        "position_embedding_type": "relative", "norm_type": "rmsnorm",
    }  # fmt: skip
    torch.set_num_threads(1)
    model = GPT(ModelConfig.model_validate(section), seed=1).eval().requires_grad_(False)
    draw = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.3)
    return LoadedModel(model, Checkpoint(Path("none"), 0, {}, {}, ""), tokenizer)


def greedy(loaded: LoadedModel, read: list[int], start: int, count: int) -> list[int]:
    """Every logit of every token, again for each."""
    told = [start]
    for _ in range(count):
        inputs, before = torch.tensor([read]), torch.tensor([told])
        logits = loaded.model.logits(inputs, decoder_input_ids_BT=before)
        told.append(int(logits[0, -1].argmax()))
    return told[1:]


def test_tokens_are_those_of_a_loop_over_all_logits(loaded: LoadedModel) -> None:
    read = [5, 17, 300, 50259, 9]
    told = tell_spans(loaded, read, 50256, Sampling(temperature=0), seed=0)
    assert list(itertools.islice(told, 8)) == greedy(loaded, read, 50256, 8)


def test_sampling_is_a_function_of_the_seed(loaded: LoadedModel) -> None:
    def draw(seed: int) -> list[int]:
        return list(itertools.islice(tell_spans(loaded, [5], 1, Sampling(), seed=seed), 6))

    assert draw(1) == draw(1) != draw(2)


def test_a_prompt_is_read_with_its_sentinels_and_an_eos(
    loaded: LoadedModel, tokenizer: TokenizerDefinition
) -> None:
    last = tokenizer.vocab_size + 2
    words = [encode_text(tokenizer, text) for text in ("The ", " is ", ".")]
    read = [*words[0], last, *words[1], last - 1, *words[2], tokenizer.eos_id]
    made = generate_text(loaded, tokenizer, "The <extra_id_0> is <extra_id_1>.", GREEDY)
    expected = greedy(loaded, read, tokenizer.eos_id, 6)
    assert list(made.ids) == expected[: len(made.ids)]
    assert len(made.ids) == 6 or expected[len(made.ids)] == tokenizer.eos_id
    at_end = generate_text(loaded, tokenizer, "The ", GREEDY)
    assert at_end == generate_text(loaded, tokenizer, "The <extra_id_0>", GREEDY)


def test_sentinels_have_names_in_what_is_told(tokenizer: TokenizerDefinition) -> None:
    sentinels = Sentinels((70, 60, 50))
    assert sentinels.named([70, 1, 2, 60, 50, 3]) == [
        "<extra_id_0>", [1, 2], "<extra_id_1>", "<extra_id_2>", [3],
    ]  # fmt: skip
    assert sentinels.cut("<extra_id_0> a") == [70, " a"]
    assert sentinels.cut("") == [70]


def test_sentinels_of_the_tokenizer_come_before_those_behind_it(
    loaded: LoadedModel, tokenizer: TokenizerDefinition
) -> None:
    size = tokenizer.vocab_size
    assert Sentinels.of(tokenizer, loaded.config).ids == (size + 2, size + 1, size)
    content = json.loads(tokenizer.json)
    pattern = content["added_tokens"][0]
    content["added_tokens"] += [
        {**pattern, "id": 7 + n, "content": f"<extra_id_{n}>"} for n in range(2)
    ]
    named = dataclasses.replace(tokenizer, json=json.dumps(content))
    assert Sentinels.of(named, loaded.config).ids == (7, 8)


def test_what_is_refused(loaded: LoadedModel, tokenizer: TokenizerDefinition) -> None:
    sentinels = Sentinels((70, 60))
    with pytest.raises(ConfigError, match="the prompt has <extra_id_1>; expected <extra_id_0>"):
        sentinels.cut("a <extra_id_1>")
    with pytest.raises(ConfigError, match="the prompt has 3 sentinels; the model 2"):
        sentinels.cut("<extra_id_0> <extra_id_1> <extra_id_2>")
    plain = loaded.config.model_copy(update={"vocab_size": tokenizer.vocab_size})
    with pytest.raises(ConfigError, match="the model tells no spans"):
        Sentinels.of(tokenizer, plain)


def test_the_command_tells_spans_and_scoring_stays_refused(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    weights = wrap_tensors(dict(loaded.model.named_parameters()))
    targets.write_wafermill(tmp_path, weights, loaded.config)
    words = ["generate", "--model_dir", tmp_path, "--tokenizer", "gpt2", "--prompt", "The "]
    words += ["--json", "--temperature", "0", "--max-new-tokens", "6"]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert loaded.tokenizer is not None
    assert json.loads(done.output)["ids"] == list(
        generate_text(loaded, loaded.tokenizer, "The ", GREEDY).ids
    )
    with pytest.raises(ConfigError, match="cannot continue texts"):
        read_model(tmp_path, None, Path("gpt2"), "cpu")
