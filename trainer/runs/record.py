"""D/run.json: what a model directory belongs to; written before step 1, checked on every start.

It holds all that `prep trace --train D --step N` needs to find the rows of a step, and every
setting that changes bits. Another value of any of them is refused by name, but the data set may
become the same with documents masked by a takedown; `datasets` says from which step on.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipeline.core.errors import ConfigError, InputError, IntegrityError
from trainer.config import ModelConfig, Params
from trainer.config.optimizer import ANY_OPTIMIZER
from trainer.data import SampleSource, TrainingData, is_continued_by
from trainer.model import optimizer
from wafer_backend.cluster.precision import SCALED
from wafer_backend.optim.registry import RegistryEntry


def read_json(path: Path, directory: str) -> Any:
    """The value in `path`. Raises InputError when it is no JSON or not there; then its directory is
    not a `directory`, such as "model directory"."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path.parent}: not a {directory}: it has no {path.name}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error


FORMAT = 1
NAME = "run.json"
SPARSITY = "sparsity"
STOPPED = "stopped"
"""Of a run that a callback stopped before its last step, until it resumes; another one is no other
run."""
_NOT_RECORDED = {"fp16_type", "loss_scaling_factor"}
"""Keys that stand in a record only where they play a part."""


def order_seed(params: Params) -> int:
    """Seed of the data order."""
    shuffle_seed = params.train_input.shuffle_seed
    return params.runconfig.seed if shuffle_seed is None else shuffle_seed


def describe_run(params: Params, data: TrainingData, micro_batch_size: int) -> dict[str, Any]:
    """The record of a run that is about to start, as JSON values: all that changes its bits."""
    unused = set() if params.model.precision in SCALED else {"loss_scaling_factor"}
    section = {
        "format": FORMAT,
        **data.describe(),
        "weights_seed": params.runconfig.seed,
        "micro_batch_size": micro_batch_size,
        "threads": params.runconfig.threads,
        "model": model_section(params),
        "optimizer": params.optimizer.model_dump(mode="json", exclude=unused),
    }
    if params.sparsity:
        section[SPARSITY] = [group.model_dump(mode="json") for group in params.sparsity]
    if params.runconfig.device != "cpu":  # its kernels add up in other orders
        section["device"] = params.runconfig.device
        section["fused_optimizer"] = optimizer.can_fuse(params.optimizer)
    if codes := _plug_ins(params):
        section["plug_ins"] = codes
    return section


def model_section(params: Params) -> dict[str, Any]:
    """Section `model` as far as it changes bits: in fp32 the half precision does not."""
    unused = set() if params.model.mixed_precision else {"fp16_type"}
    return params.model.model_dump(mode="json", exclude=unused)


def _plug_ins(params: Params) -> dict[str, str]:
    """The code of packages that add the optimizer or a scheduler of the run, by its name."""
    rates = params.optimizer.learning_rate
    schedulers = rates if isinstance(rates, tuple) else ()
    named: list[RegistryEntry[Any]] = [params.optimizer.entry, *(each.entry for each in schedulers)]
    return {one.name: str(one.code) for one in named if one.code is not None}


def read_run_record(model_dir: Path) -> dict[str, Any] | None:
    """The record in `model_dir`, None when it holds no run yet. Raises IntegrityError."""
    path = model_dir / NAME
    if not path.exists():
        return None
    try:
        recorded: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise IntegrityError(f"{path}: damaged: not JSON ({error})") from error
    return recorded


def check_same_run(
    place: Path, recorded: dict[str, Any], record: dict[str, Any], source: SampleSource
) -> None:
    """Raise ConfigError naming the first field in which `recorded`, of `place`, is another run than
    `record`; data sets may have become those of `source` by masking."""
    recorded = {key: value for key, value in recorded.items() if key != STOPPED}
    if is_continued_by(recorded.get("datasets", []), source):
        recorded["datasets"] = record["datasets"]
    refuse_difference(place, complete_record(recorded), record)


def complete_record(recorded: dict[str, Any]) -> dict[str, Any]:
    """`recorded` with the defaults of config keys that the release which wrote it did not have."""
    sections: dict[str, TypeAdapter[Any]] = {
        "model": TypeAdapter(ModelConfig),
        "optimizer": ANY_OPTIMIZER,
    }
    full = dict(recorded)
    for name, kind in sections.items():
        with contextlib.suppress(ValidationError):
            section = kind.validate_json(json.dumps(recorded.get(name)))
            values = kind.dump_python(section, mode="json")
            unused = _NOT_RECORDED - recorded[name].keys()
            full[name] = {key: value for key, value in values.items() if key not in unused}
    return full


def refuse_difference(place: Path, recorded: dict[str, Any], record: dict[str, Any]) -> None:
    """Raise ConfigError naming the first field where `record` is not `recorded`, of `place`."""
    if change := difference(recorded, record):
        raise ConfigError(
            f"{place} belongs to another run: {change}; use another --model_dir or the earlier "
            "value"
        )


def difference(recorded: dict[str, Any], record: dict[str, Any]) -> str | None:
    """The first field in which two records differ, with both values; None when they agree."""
    before, now = _flat(recorded), _flat(record)
    fields = (field for field in [*now, *before] if before.get(field) != now.get(field))
    field = next(fields, None)
    if field is None:
        return None
    return f"{field} was {before.get(field)!r}, now {now.get(field)!r}"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dicts and lists as dotted.key -> scalar."""
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in items:
        flat.update(_flat(item, f"{prefix}.{key}" if prefix else key))
    return flat
