"""Checkpoints: D/checkpoints/step_XXXXXXX/ with safetensors, state.json and, last, manifest.json;
written at once, or on a thread while training continues.

Weights and optimizer state are cut into files by size in parameter order, so bytes depend on the
state alone, never on num_csx or transport. The directory is a checkpoint once manifest.json is
there; it lists every file's size and hash, and its own.

The thread (`CheckpointWriter`) writes from a copy in host memory; where that much memory is not
free without swapping, training waits instead. At most one checkpoint is on its way. What goes wrong
with it (a full disk) is raised where the loop asks next; the checkpoint before it stays.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import safetensors.torch
import torch

from pipeline.core import failpoint, storage
from pipeline.core.errors import ConfigError, IntegrityError, PrepError
from pipeline.core.hashes import hash_bytes
from pipeline.core.words import format_bytes
from trainer.runs.console import Say
from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.sparse.masks import mask_of, pack_mask


@dataclass(frozen=True)
class _Files:
    """Where a version of control groups reports memory; `idle`: a line of memory.stat, bytes of
    files that can be read again."""

    base: str
    limit: str
    used: str
    idle: str


_V2 = _Files("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Files(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


def measure_available_memory(root: Path = Path("/")) -> int | None:
    """Bytes; None where the system does not say. `root` has proc and sys. The least of
    MemAvailable (proc_meminfo(5)) and of what every control group of this process leaves: limit
    - used + files that can be dropped (cgroup v2 and v1)."""
    meminfo = _table(root / "proc/meminfo")
    free = [meminfo["MemAvailable"] * 1024] if "MemAvailable" in meminfo else []
    free += _left_by_groups(root)
    return max(0, min(free)) if free else None


def _left_by_groups(root: Path) -> Iterator[int]:
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.is_file() else ():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _V1 if controllers else _V2
        base = root / files.base
        group = base / name.strip("/")
        for directory in (group, *group.parents):
            limit, used = directory / files.limit, directory / files.used
            if not directory.is_relative_to(base) or not (limit.is_file() and used.is_file()):
                continue
            if limit.read_text().strip() != "max":
                idle = _table(directory / "memory.stat").get(files.idle, 0)
                yield int(limit.read_text()) - int(used.read_text()) + idle


def _table(file: Path) -> dict[str, int]:
    lines = file.read_text().splitlines() if file.is_file() else []
    words = [line.replace(":", " ").split() for line in lines]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


FORMAT = 1
MAX_FILE_BYTES = 1 << 30
_DIRECTORY = re.compile(r"step_(\d{7,})\Z")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint. `state`: of state.json; `hash`: of its manifest, which identifies
    all its bytes."""

    path: Path
    step: int
    state: dict[str, Any]
    files: dict[str, dict[str, Any]]
    hash: str


@dataclass(frozen=True)
class Tensors:
    """Weights by name, optimizer state by `name.field`, and masks of sparse weights by name, as
    packed bits."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    masks: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, memoryx: MemoryX) -> "Tensors":
        """Those of now; they change with the next step."""
        optimizer = {
            f"{name}.{kind}": tensor
            for name, kinds in memoryx.optimizer_state().items()
            for kind, tensor in kinds.items()
        }
        parameters = memoryx.parameters
        masks = {n: pack_mask(m) for n, p in parameters.items() if (m := mask_of(p)) is not None}
        return cls({name: p.detach() for name, p in parameters.items()}, optimizer, masks)

    def copied(self) -> "Tensors":
        """A copy in host memory, which later steps do not change."""
        weights, optimizer = (
            {name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()}
            for named in (self.weights, self.optimizer)
        )
        return Tensors(weights, optimizer, self.masks)

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return sum(tensor.nbytes for named in vars(self).values() for tensor in named.values())


def checkpoint_directory(model_dir: Path, step: int) -> Path:
    """The directory of the checkpoint of a step.

    >>> checkpoint_directory(Path("out"), 50).as_posix()
    'out/checkpoints/step_0000050'
    """
    return model_dir / "checkpoints" / f"step_{step:07d}"


def save_checkpoint(
    model_dir: Path,
    step: int,
    tensors: Tensors,
    state: Mapping[str, Any],
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Path:
    """Write and commit the checkpoint of `step`; returns its directory. Raises ResourceError.
    `state` (JSON values): what else must agree on resume."""
    target = checkpoint_directory(model_dir, step)
    files: dict[str, storage.WrittenFile] = {}
    for kind, named in vars(tensors).items():
        for index, group in enumerate(cut_by_size(named, max_file_bytes)):
            name = f"{kind}-{index:05d}.safetensors"
            whole = {key: tensor.contiguous().cpu() for key, tensor in group.items()}
            files[name] = storage.publish(target / name, safetensors.torch.save(whole))
    commit(target, step, files, state)
    return target


def commit(
    target: Path, step: int, files: dict[str, storage.WrittenFile], state: Mapping[str, Any]
) -> None:
    """Write state.json and, last, manifest.json of `files`, to which it adds both."""
    head = {"format": FORMAT, "step": step}
    files["state.json"] = storage.write_json(target / "state.json", {**head, **state})
    entries = {name: {"size": file.size, "hash": file.hash} for name, file in files.items()}
    manifest = {**head, "files": entries}
    manifest["hash"] = _self_hash(manifest)
    files["manifest.json"] = storage.write_json(target / "manifest.json", manifest)


def find_newest(model_dir: Path) -> Path | None:
    """The committed checkpoint with the highest step, if any."""
    return next(reversed(list_committed(model_dir)), None)


def list_committed(model_dir: Path) -> list[Path]:
    """The committed checkpoints in order of step."""
    root = model_dir / "checkpoints"
    directories = []
    for path in root.iterdir() if root.is_dir() else ():
        match = _DIRECTORY.match(path.name)
        if match and (path / "manifest.json").is_file():
            directories.append((int(match[1]), path))
    return [path for _, path in sorted(directories)]


def prune(model_dir: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, each manifest before its files."""
    for path in list_committed(model_dir)[:-keep]:
        storage.remove(path / "manifest.json")
        storage.remove_tree(path)


def delete_uncommitted(model_dir: Path) -> None:
    """Delete checkpoint directories that were never committed, and temporary files."""
    root, whole = model_dir / "checkpoints", list_committed(model_dir)
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if _DIRECTORY.match(path.name) and path not in whole:
            storage.remove_tree(path)
    storage.sweep_temps(model_dir)


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the manifest and state of a checkpoint directory. Raises ConfigError when `path` is
    none, IntegrityError when it is damaged."""
    manifest_path = path / "manifest.json"
    if not manifest_path.is_file():
        others = "; to read a file of another tool, use `train convert`" if path.is_file() else ""
        raise ConfigError(f"{path}: not a checkpoint: it has no manifest.json{others}")
    manifest = _parse(manifest_path, manifest_path.read_bytes())
    recorded = manifest.pop("hash", None)
    actual = _self_hash(manifest)
    if recorded != actual:
        raise _damaged(manifest_path, str(recorded), actual)
    state_path = path / "state.json"
    state = _parse(state_path, _read(state_path, manifest["files"]["state.json"]["hash"]))
    return Checkpoint(path, int(manifest["step"]), state, manifest["files"], actual)


def load_into(checkpoint: Checkpoint, memoryx: MemoryX) -> None:
    """Put weights and optimizer state into MemoryX; all files are verified first."""
    memoryx.load(read_weights(checkpoint), read_optimizer(checkpoint))


def read_weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Weights by parameter name, verified."""
    return dict(_tensors(checkpoint, "weights"))


def read_optimizer(checkpoint: Checkpoint) -> dict[str, dict[str, torch.Tensor]]:
    """Optimizer state by parameter name and field, verified."""
    optimizer: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in _tensors(checkpoint, "optimizer"):
        name, _, kind = key.rpartition(".")
        optimizer.setdefault(name, {})[kind] = tensor
    return optimizer


def read_masks(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Masks of sparse weights by parameter name, as packed bits, verified."""
    return dict(_tensors(checkpoint, "masks"))


class HasBytes(Protocol):
    """A tensor, read or not."""

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""


T = TypeVar("T", bound=HasBytes)


def cut_by_size(tensors: Mapping[str, T], limit: int) -> Iterator[dict[str, T]]:
    """Groups of whole tensors of at most `limit` bytes, in order."""
    group: dict[str, T] = {}
    size = 0
    for name, tensor in tensors.items():
        if group and size + tensor.nbytes > limit:
            yield group
            group, size = {}, 0
        group[name] = tensor
        size += tensor.nbytes
    if group:
        yield group


def _tensors(checkpoint: Checkpoint, kind: str) -> Iterator[tuple[str, torch.Tensor]]:
    for name in sorted(name for name in checkpoint.files if name.startswith(f"{kind}-")):
        data = _read(checkpoint.path / name, checkpoint.files[name]["hash"])
        yield from safetensors.torch.load(data).items()


def _self_hash(manifest: Mapping[str, Any]) -> str:
    return hash_bytes(storage.canonical_json(dict(manifest)))


def _read(path: Path, expected: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(f"{path}: missing or unreadable; expected hash {expected}") from error
    actual = hash_bytes(data)
    if actual != expected:
        raise _damaged(path, expected, actual)
    return data


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise IntegrityError(f"{path}: damaged: not JSON ({error})") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise IntegrityError(f"{path}: expected a JSON object of format {FORMAT}")
    return value


def _damaged(path: Path, expected: str, actual: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: damaged: expected hash {expected}, found {actual}; "
        f"delete {path.parent} to resume from the checkpoint before it"
    )


def _report_to_nobody(path: Path) -> None:
    """Nobody waits for this checkpoint."""


class CheckpointWriter:
    """Saves checkpoints of one run and keeps the newest `keep`. Leaving the context waits for
    the checkpoint on its way, also after an error."""

    def __init__(self, model_dir: Path, keep: int, say: Say) -> None:
        self._model_dir = model_dir
        self._keep = keep
        self._say = say
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None
        self._report: Callable[[Path], None] = _report_to_nobody

    def save(
        self,
        step: int,
        memoryx: MemoryX,
        state: Mapping[str, Any],
        report: Callable[[Path], None] = _report_to_nobody,
    ) -> None:
        """Copy weights and optimizer state and have them written; `report` is called with the
        directory where the loop learns that it is whole. Raises as `finish` does."""
        self.finish()
        self._say(f"Saving checkpoint at step {step}")
        tensors = Tensors.of(memoryx)
        free = measure_available_memory()
        waits = free is not None and tensors.nbytes > free
        if not waits:
            tensors = tensors.copied()
        failpoint.hit("trainer.checkpoint.copied")
        self._pending = self._thread.submit(self._write, step, tensors, dict(state))
        self._report = report
        if waits and free is not None:
            self._say(
                "Training waits for this checkpoint: a copy of the weights needs "
                f"{format_bytes(tensors.nbytes)}, but {format_bytes(free)} of memory is free"
            )
            self.finish()

    def collect(self) -> None:
        """Say so if the checkpoint on its way is there. Raises what went wrong with it."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint on its way. Raises ResourceError if it could not be written, and
        what `report` raises."""
        if (path := self._wait()) is not None:
            self._report(path)

    def _wait(self) -> Path | None:
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        path = pending.result()
        self._say(f"Saved checkpoint {path}")
        return path

    def _write(self, step: int, tensors: Tensors, state: Mapping[str, Any]) -> Path:
        path = save_checkpoint(self._model_dir, step, tensors, state)
        failpoint.hit("trainer.checkpoint.committed")
        prune(self._model_dir, self._keep)
        return path

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self.finish()
            else:
                self._wait()
        except PrepError as failed:
            if error is None:
                raise
            self._say(f"The checkpoint that was being written is lost: {failed}")
        finally:
            self._thread.shutdown()
