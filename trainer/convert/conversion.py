"""What `train convert` does: a conversion from files to files, the list of formats, and the
comparison of two checkpoints; and `runconfig.export`, which converts the last checkpoint.

`conversion.json` is written first into the directory of a conversion, with what is being made, and
again last, with size and hash of every file. The same command after an interruption makes the files
again; after the end it verifies them and writes nothing.
"""

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.hashes import verify_file
from pipeline.core.mirror.paths import TEMP_MARK
from pipeline.core.words import pluralise
from trainer.config import ModelConfig, Params, load_params
from trainer.config.model_parameters import shapes
from trainer.convert import gguf_file, sources, targets
from trainer.convert.families import FAMILIES, family_of
from trainer.convert.lazy_tensors import LazyTensor
from trainer.convert.targets import CONVERSION_FILE, find_tokenizer
from trainer.convert.weights import RELEASES, from_hf, from_model_zoo, to_hf
from trainer.data.prepare import find_kept_tokenizer
from trainer.runs import checkpoint
from trainer.runs.console import Say

FORMAT = 1


def begin_output(out: Path, identity: dict[str, Any]) -> bool:
    """Prepare `out` for what `identity` describes; True when it is all there already. Raises
    ConfigError when it holds something else, IntegrityError when a file of it is damaged."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: this is a file; give a directory")
    if (out / CONVERSION_FILE).is_file():
        recorded = sources.read_json_object(out / CONVERSION_FILE)
        before = recorded.get("conversion")
        before = before if isinstance(before, dict) else {}
        for key in sorted(identity.keys() | before.keys()):
            if before.get(key) != identity.get(key):
                raise ConfigError(
                    f"--out {out}: it holds another conversion ({key} was "
                    f"{str(before.get(key))[:80]}); give a new directory"
                )
        if "files" in recorded:
            for name, entry in recorded["files"].items():
                verify_file(out / name, entry["hash"])
            return True
    elif out.exists() and not all(p.name.startswith(TEMP_MARK) for p in out.iterdir()):
        raise ConfigError(f"--out {out}: it holds other files; give a new directory")
    storage.sweep_temps(out)
    storage.write_json(out / CONVERSION_FILE, {"format": FORMAT, "conversion": identity})
    return False


Target = Literal["hf", "wafermill", "mdl", "gguf"]

SOURCES = ("wafermill", "hf", "mdl", *(f"cs-{release}" for release in RELEASES))


@dataclass(frozen=True, kw_only=True)
class CheckpointConvertOptions:
    """What the command line asked for. `shard_bytes`: most bytes of one file of a Hugging Face
    directory. `tokenizer`: `gpt2`, a tokenizer.json or its directory; by default that of the model
    directory, else GPT-2's where the model has its number of ids."""

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


@dataclass(kw_only=True)
class _SourceModel:
    """A source in our names. `masked`: weights read as 0 for NaN, by name, once they are read.
    `tokenizer`: that of the model directory it is in."""

    state: dict[str, LazyTensor]
    config: ModelConfig
    hash: str
    step: int
    dropped: list[str] = field(default_factory=list)
    masked: dict[str, int] = field(default_factory=dict)
    tokenizer: Path | None = None


def convert_checkpoint(request: CheckpointConvertOptions, say: Say) -> None:
    """Carry it out. Raises PrepError."""
    _check(request)
    with _opened(request) as read:
        identity = _identity(request, read)
        for name in read.dropped:
            say(f"left out: {name}")
        if begin_output(request.out, identity):
            say(f"{request.out} already holds this conversion, verified")
            return
        if request.target == "wafermill":
            files = targets.write_wafermill(request.out, read.state, read.config)
        elif request.target == "mdl":
            files = targets.write_mdl(request.out, read.state, read.config, read.step)
        else:
            files = _write_family(request, read, say)
        entries = {name: {"size": file.size, "hash": file.hash} for name, file in files.items()}
        record = {"format": FORMAT, "conversion": identity, "files": entries}
        storage.write_json(request.out / CONVERSION_FILE, record)
    for name, count in read.masked.items():
        say(
            f"{name}: {pluralise(count, 'NaN value')} (masked weights of sparse training) written "
            "as 0"
        )
    count = sum(t.nbytes // t.dtype.itemsize for t in read.state.values())
    say(f"{pluralise(len(read.state), 'tensor')}, {pluralise(count, 'number')} -> {request.out}")


def _write_family(request: CheckpointConvertOptions, read: _SourceModel, say: Say) -> targets.Files:
    tensors, hf_config = to_hf(read.state, read.config, request.model)
    tokenizer = find_tokenizer(request.tokenizer or read.tokenizer, read.config)
    name = "none is known; give --tokenizer" if tokenizer is None else tokenizer.name
    if request.target == "hf":
        say(f"{hf_config['architectures'][0]}; tokenizer: {name}")
        return targets.write_hf(request.out, tensors, hf_config, request.shard_bytes, tokenizer)
    if tokenizer is not None and not gguf_file.is_known_tokenizer(tokenizer):
        name = f"left out, as llama.cpp does not cut texts as {tokenizer.name} does"
        tokenizer = None
    say(f"{gguf_file.ARCHITECTURES[hf_config['model_type']]}; tokenizer: {name}")
    if (difference := gguf_file.describe_differences(hf_config)) is not None:
        say(f"note: {difference}")
    return gguf_file.write_gguf(request.out, tensors, hf_config, read.step, tokenizer)


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
        ("--model", request.model, request.target in ("hf", "gguf")),
        ("--tokenizer", request.tokenizer, request.target in ("hf", "gguf")),
    ):
        if given is not None and not needed:
            raise ConfigError(
                f"{option} has no effect from {request.source} to {request.target}; leave it out"
            )


@contextlib.contextmanager
def _opened(request: CheckpointConvertOptions) -> Iterator[_SourceModel]:
    path, unsafe, drop = request.checkpoint, request.unsafe_pickle, request.drop_unmatched
    if request.source == "wafermill":
        yield _of_wafermill(sources.open_wafermill(path), request)
    elif request.source == "hf":
        with sources.open_hf(path, request.config, unsafe) as opened:
            if not opened.model:
                raise ConfigError(
                    f"{opened.place}: missing; give --config config.json of the model"
                )
            state, config, dropped = from_hf(opened.tensors, opened.model, opened.place, drop)
            yield _SourceModel(
                state=state, config=config, hash=opened.hash, step=opened.step, dropped=dropped
            )
    else:
        if request.params is None:
            raise ConfigError(
                f"{path}: it does not contain a config; give --params params.yaml of its model"
            )
        config = load_params(request.params).model
        with sources.open_mdl(path, unsafe) as opened:
            masked: dict[str, int] = {}
            state, dropped = from_model_zoo(opened.tensors, config, drop, masked)
            yield _SourceModel(
                state=state,
                config=config,
                hash=opened.hash,
                step=opened.step,
                dropped=dropped,
                masked=masked,
            )


def _of_wafermill(
    opened: sources.SourceCheckpoint, request: CheckpointConvertOptions
) -> _SourceModel:
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
        shape = opened.tensors[name].shape if name in opened.tensors else None
        if shape != expected.get(name):
            raise InputError(
                f"{opened.place}: {name} has shape {shape}, but the config expects "
                f"{expected.get(name)}"
            )
    state = {name: opened.tensors[name] for name in expected}
    tokenizer = find_kept_tokenizer(Path(opened.place).parent.parent)
    return _SourceModel(
        state=state, config=config, hash=opened.hash, step=opened.step, tokenizer=tokenizer
    )


def _identity(request: CheckpointConvertOptions, read: _SourceModel) -> dict[str, Any]:
    identity = {
        "source_hash": read.hash,
        "source": request.source,
        "target": request.target,
        "step": read.step,
        "model": read.config.model_dump(mode="json"),
        "left_out": read.dropped,
    }
    if request.target not in ("hf", "gguf"):
        return identity
    family = family_of(read.config, request.model)
    if request.target == "gguf":
        gguf_file.check_family(family.name, read.config)
    tokenizer = find_tokenizer(request.tokenizer or read.tokenizer, read.config)
    identity["family"] = family.name
    identity["tokenizer"] = None if tokenizer is None else tokenizer.content_hash
    return identity | ({"shard_bytes": request.shard_bytes} if request.target == "hf" else {})


def list_formats() -> str:
    """Formats and families, one a line."""
    lines = [
        "formats",
        "  wafermill   checkpoint or model directory of `train` (from and to)",
        "  hf          Hugging Face: safetensors, .bin with --unsafe-pickle (from and to)",
        "  mdl         .mdl file with the names of Model Zoo R2.1 to R2.9 (from and to)",
        "  gguf        one .gguf file, as llama.cpp reads it: gpt2, gpt_neox, llama (to)",
        f"  cs-X.Y      .mdl or, with --unsafe-pickle, .pt of release {RELEASES[0]} to "
        f"{RELEASES[-1]} (from)",
        "families of hf",
    ]
    for family in FAMILIES.values():
        lines.append(f"  {family.name:<11} {family.architecture:<20} {family.verified}")
    return "\n".join(lines)


def check_export(params: Params) -> None:
    """Refuse, before step 1, to train what cannot be exported. Raises ConfigError."""
    if params.runconfig.export is None:
        return
    try:
        family_of(params.model)
    except ConfigError as error:
        raise ConfigError(f"runconfig.export: {params.runconfig.export}: {error}") from error


def export_checkpoint(params: Params, model_dir: Path, say: Say) -> None:
    """Write MODEL_DIR/export/step_XXXXXXX from the last checkpoint, unless it is there."""
    newest = checkpoint.find_newest(model_dir)
    if params.runconfig.export is None or newest is None:
        return
    convert_checkpoint(
        CheckpointConvertOptions(
            checkpoint=newest,
            source="wafermill",
            target=params.runconfig.export,
            out=model_dir / "export" / newest.name,
        ),
        say,
    )


_ROWS = 1024


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that is not the same in both: what differs, in words."""

    name: str
    what: str


@dataclass(frozen=True)
class CheckpointComparison:
    """All tensors of both sides, and those that differ."""

    tensors: int
    differences: tuple[TensorDifference, ...]
    largest: float


def compare_checkpoints(
    left: Path, right: Path, tolerance: float = 0.0, unsafe: bool = False
) -> CheckpointComparison:
    """The tensors of two checkpoints that differ by more than `tolerance`; NaN equals NaN.
    Raises ConfigError for two formats, and what opening them raises."""
    if not tolerance >= 0:
        raise ConfigError(f"--tolerance {tolerance}: expected a number of at least 0")
    with (
        sources.open_raw(left, unsafe) as (left_form, ours),
        sources.open_raw(right, unsafe) as (form, theirs),
    ):
        if left_form != form:
            raise ConfigError(
                f"{left} has format {left_form}, {right} has {form}; convert one of them first"
            )
        differing, largest = [], 0.0
        for name in dict.fromkeys([*ours, *theirs]):
            what, size = _difference(ours.get(name), theirs.get(name), tolerance)
            largest = max(largest, size)
            if what:
                differing.append(TensorDifference(name, what))
        return CheckpointComparison(len(ours.keys() | theirs.keys()), tuple(differing), largest)


def _difference(
    left: LazyTensor | None, right: LazyTensor | None, tolerance: float
) -> tuple[str, float]:
    """(what differs or "", largest absolute difference)."""
    if left is None or right is None:
        return f"only in the {'right' if left is None else 'left'}", 0.0
    if left.shape != right.shape:
        return f"shape {left.shape} and {right.shape}", 0.0
    size = 0.0  # infinite where only one is NaN or an infinity differs
    a, b = (tensor.read().reshape(tensor.shape or (1,)) for tensor in (left, right))
    for rows, others in zip(torch.split(a, _ROWS), torch.split(b, _ROWS), strict=True):
        x, y = rows.to(torch.float64), others.to(torch.float64)
        same = (x == y) | (x.isnan() & y.isnan())
        gap = (x - y).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0.0)
        size = max(size, float(gap.max())) if gap.numel() else size
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in (left, right)]
    kinds = "" if left.dtype == right.dtype else f"{' and '.join(dtypes)}, "
    if kinds or size > tolerance:
        return f"{kinds}largest difference {size:g}", size
    return "", size
