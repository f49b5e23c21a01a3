"""One conversion from files to files: open the source, map it, write the target."""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from trainer.config import ModelConfig, load_params
from trainer.convert import output, targets
from trainer.convert.families import family_of
from trainer.convert.huggingface import from_hf, to_hf
from trainer.convert.lazy import LazyTensor
from trainer.convert.modelzoo import RELEASES, from_model_zoo
from trainer.convert.parameters import shapes
from trainer.convert.sources import SourceCheckpoint, open_hf, open_mdl, open_wafermill
from trainer.convert.tokenizer_files import tokenizer_of

Target = Literal["hf", "wafermill", "mdl"]
Say = Callable[[str], None]

SOURCES = ("wafermill", "hf", "mdl", *(f"cs-{release}" for release in RELEASES))


@dataclass(frozen=True)
class CheckpointConvertOptions:
    """What the command line asked for. `shard_bytes`: most bytes of one file of a Hugging Face
    directory. `tokenizer`: `gpt2`, a tokenizer.json or its directory.
    """

    checkpoint: Path
    source: str
    target: Target
    out: Path
    params: Path | None = None
    config: Path | None = None
    model: str | None = None
    tokenizer: str | None = None
    shard_bytes: int = 5 * 10**9
    drop_unmatched: bool = False
    unsafe_pickle: bool = False


@dataclass
class _SourceModel:
    """A source in our names. `masked`: weights read as 0 for NaN, by name, once they are read."""

    state: dict[str, LazyTensor]
    config: ModelConfig
    hash: str
    step: int
    dropped: list[str] = field(default_factory=list)
    masked: dict[str, int] = field(default_factory=dict)


def convert(request: CheckpointConvertOptions, say: Say) -> None:
    """Carry it out. Raises PrepError."""
    _check(request)
    with _opened(request) as read:
        identity = _identity(request, read)
        for name in read.dropped:
            say(f"left out: {name}")
        if output.begin(request.out, identity):
            say(f"{request.out} already holds this conversion, verified")
            return
        files = _write(request, read, say)
        output.finish(request.out, identity, files)
    for name, count in read.masked.items():
        say(
            f"{name}: {pluralise(count, 'NaN value')} (masked weights of sparse training) written "
            "as 0"
        )
    count = sum(_elements(tensor) for tensor in read.state.values())
    say(f"{pluralise(len(read.state), 'tensor')}, {pluralise(count, 'number')} -> {request.out}")


def _check(request: CheckpointConvertOptions) -> None:
    if request.source not in SOURCES:
        raise ConfigError(
            f"--src-fmt {request.source}: expected wafermill, hf, mdl or cs-{RELEASES[0]} to "
            f"cs-{RELEASES[-1]}"
        )
    if request.source == request.target:
        raise ConfigError(f"--src-fmt and --tgt-fmt are both {request.source}: nothing to convert")
    if not request.checkpoint.exists():
        raise ConfigError(f"{request.checkpoint}: there is no such file or directory")
    for option, given, needed in (
        ("--config", request.config, request.source == "hf"),
        ("--params", request.params, request.source != "hf"),
        ("--model", request.model, request.target == "hf"),
        ("--tokenizer", request.tokenizer, request.target == "hf"),
    ):
        if given is not None and not needed:
            raise ConfigError(
                f"{option} has no effect from {request.source} to {request.target}; leave it out"
            )


@contextlib.contextmanager
def _opened(request: CheckpointConvertOptions) -> Iterator[_SourceModel]:
    """The source in our names and shapes, for the life of the block."""
    path, unsafe, drop = request.checkpoint, request.unsafe_pickle, request.drop_unmatched
    if request.source == "wafermill":
        yield _of_wafermill(open_wafermill(path), request)
    elif request.source == "hf":
        with open_hf(path, request.config, unsafe) as opened:
            if not opened.model:
                raise ConfigError(
                    f"{opened.place}: missing; give --config config.json of the model"
                )
            state, config, dropped = from_hf(opened.tensors, opened.model, opened.place, drop)
            yield _SourceModel(state, config, opened.hash, opened.step, dropped)
    else:
        if request.params is None:
            raise ConfigError(
                f"{path}: it does not contain a config; give --params params.yaml of its model"
            )
        config = load_params(request.params).model
        with open_mdl(path, unsafe) as opened:
            masked: dict[str, int] = {}
            state, dropped = from_model_zoo(opened.tensors, config, drop, masked)
            yield _SourceModel(state, config, opened.hash, opened.step, dropped, masked)


def _of_wafermill(opened: SourceCheckpoint, request: CheckpointConvertOptions) -> _SourceModel:
    if request.params is not None:
        config = load_params(request.params).model
    else:
        try:
            config = ModelConfig.model_validate_json(json.dumps(opened.model))
        except ValidationError as error:
            raise InputError(
                f"{opened.place}/state.json: section model does not fit this release "
                f"({pluralise(error.error_count(), 'wrong key')}); give --params params.yaml"
            ) from error
    expected = shapes(config)
    for name in sorted(expected.keys() | opened.tensors.keys()):
        found = opened.tensors[name].shape if name in opened.tensors else None
        if found != expected.get(name):
            raise InputError(
                f"{opened.place}: {name} has shape {found}, but the config expects "
                f"{expected.get(name)}"
            )
    state = {name: opened.tensors[name] for name in expected}
    return _SourceModel(state, config, opened.hash, opened.step)


def _identity(request: CheckpointConvertOptions, read: _SourceModel) -> dict[str, Any]:
    """What decides the bytes of the output, as JSON values."""
    identity = {
        "source_hash": read.hash,
        "source": request.source,
        "target": request.target,
        "step": read.step,
        "model": read.config.model_dump(mode="json"),
        "left_out": read.dropped,
    }
    if request.target != "hf":
        return identity
    tokenizer = tokenizer_of(request.tokenizer, read.config)
    return identity | {
        "family": family_of(read.config, request.model).name,
        "tokenizer": None if tokenizer is None else tokenizer.content_hash,
        "shard_bytes": request.shard_bytes,
    }


def _write(request: CheckpointConvertOptions, read: _SourceModel, say: Say) -> targets.Files:
    if request.target == "wafermill":
        return targets.write_wafermill(request.out, read.state, read.config)
    if request.target == "mdl":
        return targets.write_mdl(request.out, read.state, read.config, read.step)
    tensors, hf_config = to_hf(read.state, read.config, request.model)
    tokenizer = tokenizer_of(request.tokenizer, read.config)
    known = "none is known; give --tokenizer" if tokenizer is None else tokenizer.name
    say(f"{hf_config['architectures'][0]}; tokenizer: {known}")
    return targets.write_hf(request.out, tensors, hf_config, request.shard_bytes, tokenizer)


def _elements(tensor: LazyTensor) -> int:
    return tensor.nbytes // tensor.dtype.itemsize
