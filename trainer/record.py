"""D/run.json: what a model directory belongs to; written before step 1, checked on every start.

It holds all that `prep trace --train D --step N` needs to find the rows of a step, and every
setting that changes bits. Another value of any of them is refused by name. One thing may change:
the data set may be the same with documents masked by a takedown; `datasets` then says from which
step on.
"""

import json
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import ConfigError, IntegrityError
from pipeline.core.order import Schedule
from pipeline.hdf5.read import SampleDataset
from trainer.config import Params

FORMAT = 1
NAME = "run.json"


def order_seed(params: Params) -> int:
    """Seed of the data order."""
    shuffle_seed = params.train_input.shuffle_seed
    return params.runconfig.seed if shuffle_seed is None else shuffle_seed


def batch_size_schedule(params: Params) -> Schedule:
    """((from_step, batch_size), ...) with from_step 1-based."""
    return ((1, params.train_input.batch_size),)


def describe(params: Params, dataset: SampleDataset, micro_batch_size: int) -> dict[str, Any]:
    """The record of a run that is about to start, as JSON values."""
    return {
        "format": FORMAT,
        "seed": order_seed(params),
        "weights_seed": params.runconfig.seed,
        "batch_size_schedule": [list(entry) for entry in batch_size_schedule(params)],
        "micro_batch_size": micro_batch_size,
        "threads": params.runconfig.threads,
        "max_sequence_length": dataset.max_sequence_length,
        "datasets": [
            {
                "from_step": 1,
                "dataset_hash": dataset.dataset_hash,
                "rows": dataset.rows,
                "rows_globally_shuffled": dataset.rows_globally_shuffled,
            }
        ],
        "model": model_section(params),
        "optimizer": _optimizer_section(params),
        **_accelerator(params),
    }


def model_section(params: Params) -> dict[str, Any]:
    """Section `model` as far as it changes bits: in fp32 the half precision is no matter."""
    unused = set() if params.model.mixed_precision else {"fp16_type"}
    return params.model.model_dump(mode="json", exclude=unused)


def _optimizer_section(params: Params) -> dict[str, Any]:
    unused = set() if params.model.precision == "float16" else {"loss_scaling_factor"}
    return params.optimizer.model_dump(mode="json", exclude=unused)


def _accelerator(params: Params) -> dict[str, Any]:
    """Kernels of a GPU add up in other orders, and its AdamW is the fused one."""
    if params.runconfig.device == "cpu":
        return {}
    return {"device": params.runconfig.device, "fused_optimizer": True}


def check(model_dir: Path, record: dict[str, Any], dataset: SampleDataset) -> dict[str, Any] | None:
    """The record in `model_dir`, if it already holds this run.

    Raises ConfigError naming the first field in which it holds another one.
    """
    path = model_dir / NAME
    if not path.exists():
        return None
    try:
        known: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise IntegrityError(f"{path}: damaged: not JSON ({error})") from error
    refuse_difference(model_dir, on_masked(known, record, dataset), record)
    return known


def on_masked(
    known: dict[str, Any], record: dict[str, Any], dataset: SampleDataset
) -> dict[str, Any]:
    """`known` with the data sets of `record`, if its own are this one or became it by masking
    alone: the same rows in the same order. Else `known` as it is."""
    now = record["datasets"][0]
    hashes = {*dataset.ancestors, dataset.dataset_hash}
    same = ("rows", "rows_globally_shuffled")
    earlier = known.get("datasets", [])
    if all(
        entry["dataset_hash"] in hashes and all(entry[name] == now[name] for name in same)
        for entry in earlier
    ):
        return {**known, "datasets": record["datasets"]}
    return known


def datasets_from(
    known: dict[str, Any] | None, record: dict[str, Any], step: int
) -> list[dict[str, Any]]:
    """The data sets of a run that goes on after `step`: those of `known` up to there, and the one
    of `record` from the next step on, if it is another.

    >>> now = {"datasets": [{"from_step": 1, "dataset_hash": "b"}]}
    >>> before = {"datasets": [{"from_step": 1, "dataset_hash": "a"}]}
    >>> [(d["from_step"], d["dataset_hash"]) for d in datasets_from(before, now, 7)]
    [(1, 'a'), (8, 'b')]
    >>> datasets_from(before, now, 0) == now["datasets"]
    True
    """
    now = record["datasets"][0]
    kept = [entry for entry in (known or record)["datasets"] if entry["from_step"] <= step]
    if kept and kept[-1]["dataset_hash"] == now["dataset_hash"]:
        return kept
    return [*kept, {**now, "from_step": step + 1}]


def refuse_difference(place: Path, known: dict[str, Any], record: dict[str, Any]) -> None:
    """Raise ConfigError naming the first field where `record` differs from `known`, of `place`."""
    before, now = _flat(known), _flat(record)
    for field in [*now, *before]:
        if before.get(field) != now.get(field):
            raise ConfigError(
                f"{place} belongs to another run: {field} was {before.get(field)!r}, "
                f"now {now.get(field)!r}; use another --model_dir or the earlier value"
            )


def write(model_dir: Path, record: dict[str, Any]) -> None:
    """Publish the record of a new run."""
    storage.write_json(model_dir / NAME, record)


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
