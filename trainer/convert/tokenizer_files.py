"""Files of the tokenizer in a Hugging Face directory."""

from collections.abc import Mapping
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from pipeline.shipped import gpt2_vocabulary
from pipeline.tokenizers.definition import GPT2, TokenizerDefinition, load_definition
from trainer.config import ModelConfig


def tokenizer_of(wanted: str | None, config: ModelConfig) -> TokenizerDefinition | None:
    """The tokenizer to write: the one named (`gpt2`, a tokenizer.json, a directory with one), or
    GPT-2's for a vocabulary of its size, or none.

    Raises ConfigError when the model has not as many embeddings as it has ids.
    """
    if wanted is None and config.vocab_size != load_definition(GPT2).vocab_size:
        return None
    definition = load_definition(wanted or GPT2)
    if definition.vocab_size > config.vocab_size:
        raise ConfigError(
            f"--tokenizer {wanted}: it has {definition.vocab_size:,} ids, but model.vocab_size is "
            f"{config.vocab_size:,}"
        )
    return definition


def token_ids(tokenizer: TokenizerDefinition | None) -> dict[str, int | None]:
    """Ids that begin and end a text, null when no tokenizer is known."""
    eos = None if tokenizer is None else tokenizer.eos_id
    return {"bos_token_id": eos, "eos_token_id": eos}


def tokenizer_files(
    tokenizer: TokenizerDefinition | None, hf_config: Mapping[str, Any]
) -> dict[str, bytes]:
    """Name -> bytes: tokenizer.json and its config; for GPT-2 also its two classic files."""
    if tokenizer is None:
        return {}
    classic = tokenizer.name == GPT2
    length = hf_config.get("n_positions") or hf_config.get("max_position_embeddings")
    settings = {
        "tokenizer_class": "GPT2Tokenizer" if classic else "PreTrainedTokenizerFast",
        "bos_token": tokenizer.eos_token,
        "eos_token": tokenizer.eos_token,
        "model_max_length": length,
    }
    if classic:
        settings |= {"unk_token": tokenizer.eos_token, "add_prefix_space": False}
    files = {
        "tokenizer.json": tokenizer.json.encode(),
        "tokenizer_config.json": storage.canonical_json(settings),
    }
    if classic:
        files["vocab.json"] = (gpt2_vocabulary() / "encoder.json").read_bytes()
        files["merges.txt"] = (gpt2_vocabulary() / "vocab.bpe").read_bytes()
    return files
