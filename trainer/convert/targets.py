"""Writes converted models: a Hugging Face directory with the files of its tokenizer, a model
directory of ours, a `.mdl` file.

One tensor is in memory at a time. Each function returns the files it published, as paths inside
`out`.

`push_model` uploads such a directory to a repository of the Hugging Face Hub.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.hashes import hash_file, verify_file
from pipeline.core.hub import CARD, Repository, Upload, upload_files
from pipeline.core.shipped import gpt2_vocabulary
from pipeline.core.storage import WrittenFile
from pipeline.tokenizers.definition import GPT2, TokenizerDefinition, load_definition
from trainer.config import ModelConfig, load_params
from trainer.config.params import task_of
from trainer.convert import lazy_tensors
from trainer.convert.lazy_tensors import State
from trainer.convert.sources import INDEX, read_json_object
from trainer.convert.weights import to_model_zoo
from trainer.runs import checkpoint, record
from wafer_backend.storage import checkpoint as mdl_storage
from wafer_backend.storage.checkpoint import DeferredTensor

CONVERSION_FILE = "conversion.json"
"""What a conversion was made of, and the hashes of its files; written last."""


def find_tokenizer(name: str | Path | None, config: ModelConfig) -> TokenizerDefinition | None:
    """The tokenizer to write: the named one, or GPT-2's for a vocabulary of its size, or none.
    Raises ConfigError when it has more ids than the model has embeddings."""
    gpt2 = load_definition(GPT2)
    if name is None and config.vocab_size != gpt2.vocab_size:
        return None
    definition = load_definition(name or GPT2)
    if definition.content_hash == gpt2.content_hash:
        return gpt2  # so that a copy of it is written in its two classic files too
    if definition.vocab_size > config.vocab_size:
        raise ConfigError(
            f"--tokenizer {name}: it has {definition.vocab_size:,} ids, but model.vocab_size is "
            f"{config.vocab_size:,}"
        )
    return definition


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
        "bos_token": tokenizer.bos_token or tokenizer.eos_token,
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


Files = dict[str, WrittenFile]

PARAMS_HEADER = """\
# Made by `train convert`. Section model describes the weights beside this file. The batch size, the
# learning rate and the length are placeholders, which no checkpoint can know: set your own.
"""


def write_hf(
    out: Path,
    tensors: State,
    hf_config: Mapping[str, Any],
    shard_bytes: int,
    tokenizer: TokenizerDefinition | None,
) -> Files:
    """model.safetensors, or several and their index; tokenizer; config.json last."""
    shards = list(checkpoint.cut_by_size(tensors, shard_bytes))
    names = [_shard_name(index, len(shards)) for index in range(len(shards))]
    files: Files = {}
    for name, shard in zip(names, shards, strict=True):
        files[name] = lazy_tensors.write_safetensors(out / name, shard, {"format": "pt"})
    if len(shards) > 1:
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        files[INDEX] = storage.write_json(out / INDEX, index)
    eos = None if tokenizer is None else tokenizer.eos_id
    bos = eos if tokenizer is None or tokenizer.bos_id is None else tokenizer.bos_id
    ids = {"bos_token_id": bos, "eos_token_id": eos}
    if tokenizer is not None and hf_config.get("is_encoder_decoder"):
        start = tokenizer.decoder_start_id
        ids |= {"decoder_start_token_id": start, "pad_token_id": start}
    for name, data in tokenizer_files(tokenizer, hf_config).items():
        files[name] = storage.publish(out / name, data)
    generation = {**ids, "do_sample": False}
    files["generation_config.json"] = storage.write_json(out / "generation_config.json", generation)
    files["config.json"] = storage.write_json(out / "config.json", {**hf_config, **ids})
    return files


def write_wafermill(
    out: Path,
    state: State,
    config: ModelConfig,
    step: int = 0,
    max_file_bytes: int = checkpoint.MAX_FILE_BYTES,
) -> Files:
    """params.yaml and a checkpoint of weights in fp32, which masters are; manifest.json last.
    Files, names and bytes are those of `trainer.runs.checkpoint.save_checkpoint`."""
    files = write_params_yaml(out, config)
    section = record.model_section(load_params(out / "params.yaml"))
    directory = checkpoint.checkpoint_directory(out, step)
    masters = {name: lazy_tensors.cast(tensor, torch.float32) for name, tensor in state.items()}
    listed: dict[str, WrittenFile] = {}
    for index, group in enumerate(checkpoint.cut_by_size(masters, max_file_bytes)):
        name = f"weights-{index:05d}.safetensors"
        listed[name] = lazy_tensors.write_safetensors(directory / name, group)
    checkpoint.commit(directory, step, listed, {"model": section})
    inside = directory.relative_to(out)
    return files | {(inside / name).as_posix(): file for name, file in listed.items()}


def write_mdl(out: Path, state: State, config: ModelConfig, step: int) -> Files:
    """params.yaml and checkpoint_STEP.mdl with `model` and `global_step`."""
    files = write_params_yaml(out, config)
    deferred: dict[int, DeferredTensor] = {}
    named = to_model_zoo(state, config)
    for tensor in named.values():
        on_cpu = DeferredTensor(tensor.read, tensor.shape, tensor.dtype, torch.device("cpu"))
        deferred.setdefault(id(tensor), on_cpu)
    model = {name: deferred[id(tensor)] for name, tensor in named.items()}
    name = f"checkpoint_{step}.mdl"
    mdl_storage.write_checkpoint({"model": model, "global_step": step}, out / name)
    files[name] = WrittenFile((out / name).stat().st_size, hash_file(out / name))
    return files


def write_params_yaml(out: Path, config: ModelConfig) -> Files:
    """A params.yaml that loads, with this section `model`."""
    task, _ = task_of(config)
    transforms = {} if task is None else {"data_transforms": [{"name": task}]}
    sections = {
        "train_input": {"batch_size": 8, **transforms},
        "model": config.model_dump(mode="json", exclude_defaults=True),
        "optimizer": {"learning_rate": 1e-5},
        "runconfig": {"max_steps": 100},
    }
    text = PARAMS_HEADER + yaml.safe_dump(sections, sort_keys=False)
    return {"params.yaml": storage.publish(out / "params.yaml", text.encode())}


def _shard_name(index: int, count: int) -> str:
    """
    >>> _shard_name(0, 1), _shard_name(1, 3)
    ('model.safetensors', 'model-00002-of-00003.safetensors')
    """
    return (
        "model.safetensors" if count == 1 else f"model-{index + 1:05d}-of-{count:05d}.safetensors"
    )


def push_model(
    directory: Path, to: Repository, dry_run: bool, say: Callable[[str], None]
) -> list[Upload]:
    """Upload the files of a conversion, verified by their hashes, and a README.md that is beside
    them; with `dry_run` only list them, which needs no network. Raises InputError for a directory
    without a finished conversion, IntegrityError for damage, ConfigError for what the Hub
    refuses."""
    uploads = list_model(directory)
    if uploads[-1].path != CARD:
        say(f"no {directory / CARD}: `train card MODEL_DIR --out {directory / CARD}` writes one")
    if not dry_run:
        upload_files(to, uploads, say)
    return uploads


def list_model(directory: Path) -> list[Upload]:
    """The files of a conversion, its record, and the card at last, if there is one."""
    record = directory / CONVERSION_FILE
    files = read_json_object(record).get("files") if record.is_file() else None
    if not isinstance(files, dict):
        raise InputError(
            f"{directory}: no finished {CONVERSION_FILE}: expected a directory written by `train "
            "convert MODEL_DIR --src-fmt wafermill --tgt-fmt hf --out DIR`"
        )
    for name, entry in files.items():
        verify_file(directory / name, entry["hash"])
    names = [*sorted(set(files) - {CARD}), CONVERSION_FILE]
    names += [CARD] if (directory / CARD).is_file() else []
    return [Upload(name, directory / name, (directory / name).stat().st_size) for name in names]
