"""`train track`: the metrics of a training run to Weights & Biases or MLflow, from the lines of
metrics.jsonl and eval.jsonl, which hold each step once. Training itself talks to neither, so
neither can stop it; while it runs, `follow` sends lines as they come.

Lines that were sent are not sent again: MODEL_DIR/tracked.json says up to which step. A run that
went back to a checkpoint is sent from the first step that was not sent before; W&B takes no step
twice.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.core import journal, storage
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.manifest import fingerprint_of
from trainer.runs import metrics, record

STATE = "tracked.json"
_PAUSE = 2.0
Values = Mapping[str, float]


class Tracker(Protocol):
    """A run at a service, or in its files."""

    def log(self, step: int, values: Values) -> None:
        """Values by name at a step; steps ascend."""

    def close(self) -> None:
        """Everything was sent."""


@dataclass(frozen=True, kw_only=True)
class TrackOptions:
    """Where to: `wandb` or `mlflow`; the name of the project (an experiment there) and of the run;
    W&B without a network; MLflow's store; whether to go on until training ends."""

    to: str
    project: str = "wafermill"
    name: str | None = None
    offline: bool = False
    uri: str | None = None
    follow: bool = False


def send_metrics(model_dir: Path, options: TrackOptions, say: Callable[[str], None]) -> int:
    """Send what was not sent before; returns the number of lines. Raises InputError for what is no
    model directory, ConfigError for a service whose package is missing or that refuses."""
    described = record.read_json(model_dir / record.NAME, "model directory")
    described.pop(record.STOPPED, None)
    identity = fingerprint_of({"run": described})
    key = f"{options.to} {options.uri or ''} {options.project}".strip()
    sent = _read_state(model_dir).get(key, {})
    if sent and sent["run"] != identity:
        raise InputError(
            f"{model_dir / STATE}: was written for another run than {record.NAME} describes; "
            "remove it to send this one"
        )
    tracker = _open(model_dir, options, described, identity)
    count, last = 0, {name: int(sent.get(name, 0)) for name in (_TRAIN, _EVAL)}
    try:
        while True:
            runs = journal.holder(model_dir)[1]
            for name, step, values in _read_lines(model_dir, last):
                tracker.log(step, {f"{name}/{key}": value for key, value in values.items()})
                last[name], count = step, count + 1
            if not (options.follow and runs):
                break
            time.sleep(_PAUSE)
    finally:
        tracker.close()
        _write_state(model_dir, key, {"run": identity, **last})
    say(f"{options.to} {options.project}: {count:,} lines, up to step {max(last.values()):,}")
    return count


_TRAIN, _EVAL = "train", "eval"
_FILES = {_TRAIN: metrics.TRAINING, _EVAL: metrics.EVALUATION}


def _read_lines(
    model_dir: Path, last: Mapping[str, int]
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Whole lines behind the steps that were sent, by step, training first."""
    found = []
    for name, file in _FILES.items():
        path = model_dir / file
        if not path.exists():
            continue
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            try:
                value = json.loads(line)
                step = int(value.pop("step"))
            except (ValueError, KeyError, TypeError) as error:
                shown = escape_text(line.decode(errors="replace"), 60)
                raise InputError(f"{path}: not a line of metrics: {shown}") from error
            if step > last[name]:
                found.append((step, name == _EVAL, name, dict(_numbers(value))))
    for step, _, name, values in sorted(found, key=lambda entry: entry[:2]):
        yield name, step, values


def _numbers(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Finite numbers, those of nested objects too; true and false are none."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _numbers(item, f"{prefix}{key}/")
        elif isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item):
            yield f"{prefix}{key}", item


def _read_state(model_dir: Path) -> dict[str, Any]:
    path = model_dir / STATE
    if not path.exists():
        return {}
    value = record.read_json(path, "model directory")
    return value if isinstance(value, dict) else {}


def _write_state(model_dir: Path, key: str, value: dict[str, Any]) -> None:
    storage.write_json(model_dir / STATE, {**_read_state(model_dir), key: value})


def _open(
    model_dir: Path, options: TrackOptions, described: Mapping[str, Any], identity: str
) -> Tracker:
    name = options.name or model_dir.resolve().name
    kinds: dict[str, Callable[..., Tracker]] = {"wandb": _Wandb, "mlflow": _Mlflow}
    if options.to not in kinds:
        raise ConfigError(f"--to {options.to}: expected {' or '.join(kinds)}")
    try:
        return kinds[options.to](model_dir, options, name, described, identity)
    except ImportError as error:
        raise ConfigError(
            f"--to {options.to}: the package {error.name} is missing; pip install {options.to}"
        ) from error
    except Exception as error:  # what these packages raise has no common class
        reason = escape_text(str(error), 300)
        raise ConfigError(f"--to {options.to}: {type(error).__name__}: {reason}") from error


class _Wandb:
    """A run of W&B whose id follows from the record of the training run, so that it goes on."""

    def __init__(
        self,
        model_dir: Path,
        options: TrackOptions,
        name: str,
        described: Mapping[str, Any],
        identity: str,
    ) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=options.project,
            name=name,
            id=identity[:16],
            resume="allow",
            mode="offline" if options.offline else "online",
            dir=str(model_dir),
            config=dict(described),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def log(self, step: int, values: Values) -> None:
        """See `Tracker`."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """See `Tracker`."""
        self._run.finish()


class _Mlflow:
    """A run of MLflow in an experiment; the one that has this run's id as a tag goes on."""

    def __init__(
        self,
        model_dir: Path,
        options: TrackOptions,
        name: str,
        described: Mapping[str, Any],
        identity: str,
    ) -> None:
        from mlflow.tracking import MlflowClient

        store = options.uri or f"sqlite:///{(model_dir / 'mlflow.db').resolve()}"
        self._client: Any = MlflowClient(tracking_uri=store)
        known = self._client.get_experiment_by_name(options.project)
        experiment = (
            known.experiment_id if known else self._client.create_experiment(options.project)
        )
        tagged = f"tags.wafermill_run = '{identity}'"
        found = self._client.search_runs([experiment], tagged)
        if found:
            self._id = found[0].info.run_id
        else:
            tags = {"wafermill_run": identity}
            made = self._client.create_run(experiment, run_name=name, tags=tags)
            self._id = made.info.run_id
            for key, value in _flatten(described):
                self._client.log_param(self._id, key, value[:500])
        self._waiting: list[Any] = []

    def log(self, step: int, values: Values) -> None:
        """See `Tracker`."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [Metric(key, value, now, step) for key, value in values.items()]
        if len(self._waiting) >= 500:
            self._send()

    def _send(self) -> None:
        self._client.log_batch(self._id, metrics=self._waiting[:1000])
        self._waiting = self._waiting[1000:]

    def close(self) -> None:
        """See `Tracker`."""
        while self._waiting:
            self._send()
        self._client.set_terminated(self._id)


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flatten(item, f"{prefix}{key}.")
        elif not isinstance(item, list):
            yield f"{prefix}{key}", str(item)
