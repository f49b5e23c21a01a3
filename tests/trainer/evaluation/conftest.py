"""A run of two sources that tell themselves apart by their letters, and models for it.

`lower` writes small letters, `upper` capitals, and no byte of one is in the other; the vocabulary
is bytes, two pairs of letters and EOS.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import pipeline
from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from trainer.config import ModelConfig
from trainer.generation.loaded import LoadedModel, find_checkpoint, load_model
from trainer.model import GPT
from trainer.runs import checkpoint
from trainer.runs.checkpoint import Tensors

MSL = 32
EOS = "<|end|>"
CONFIG = """\
name: two
seed: 1
inputs:
  - {name: lower, path: lower.jsonl}
  - {name: upper, path: upper.jsonl}
clean: {min_length: 10}
dedup: {preset: none}
tokenize: {tokenizer: tokenizer.json}
splits: {test: 20 %, validation: 20 %}
pack: {max_sequence_length: MSL, format: FORMAT}
"""
"""Of the run; its MSL and format are put in."""


def write_tokenizer(path: Path) -> Path:
    """256 bytes, `ab` and `CD`, EOS: 259 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "ab", "CD"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("C", "D")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    tokenizer.save(str(path))
    return path


def write_run(root: Path, layout: str) -> Path:
    """The finished run directory."""
    generator = random.Random(3)
    for name, letters in (("lower", "abcdé"), ("upper", "ABCDЖ")):
        texts = [
            "".join(generator.choices(letters, k=generator.randint(20, 90))) for _ in range(40)
        ]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (root / f"{name}.jsonl").write_text(lines)
    write_tokenizer(root / "tokenizer.json")
    config = CONFIG.replace("MSL", str(MSL)).replace("FORMAT", layout)
    (root / "prep.yaml").write_text(config)
    return pipeline.run(root / "prep.yaml", root / "run", 0).directory


@pytest.fixture(scope="session", params=["sample", "vsl"])
def run_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("evaluated"), request.param)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TokenizerDefinition:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return load_definition(write_tokenizer(path))


def tiny(**changes: Any) -> ModelConfig:
    base = {"vocab_size": 259, "max_position_embeddings": MSL, "hidden_size": 16,
            "num_hidden_layers": 2, "num_heads": 2, "filter_size": 32,
            "initializer": {"name": "truncated_normal", "std": 0.5}}  # fmt: skip
    return ModelConfig.model_validate({**base, **changes})


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """make_model(**changes): a model directory with one checkpoint, of step 7."""

    def made(**changes: Any) -> Path:
        config = tiny(**changes)
        weights = {name: p.detach() for name, p in GPT(config, seed=5).named_parameters()}
        state = {"model": config.model_dump(mode="json")}
        checkpoint.save_checkpoint(tmp_path / "model", 7, Tensors(weights, {}), state)
        return tmp_path / "model"

    return made


@pytest.fixture
def loaded(make_model: Callable[..., Path]) -> LoadedModel:
    return load_model(find_checkpoint(make_model()))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
