"""`DataLoader`: the user's loader, run in this process or by worker processes."""

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol, runtime_checkable

from wafer_backend.distributed import DataLoaderCheckpoint, watch_batch_sizes, worker_state
from wafer_backend.errors import BackendConfigError, BackendError
from wafer_backend.utils.data.workers import StreamPosition, WorkerPool, infer_batch_size


@runtime_checkable
class RestartableDataLoader(Protocol):
    """A loader that can be resumed. `get_worker_state()` in `state_dict` says where it stands."""

    def state_dict(self) -> dict[str, Any]:
        """State of the loader in one worker."""

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Continue from what `deaggregate_state_dict` returned."""

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        """One state of the states of all workers; here the list always has one element."""

    def deaggregate_state_dict(
        self, aggregated_state_dict: dict[str, Any], strict: bool = True
    ) -> dict[str, Any]:
        """The state of this worker of the state of all."""


_numbers = itertools.count()


class DataLoader:
    """Global batches from `input_fn(*args, **kwargs)`, which returns any iterable of batches.

    The batch of the loader is the global batch, so the data is the same for any num_csx. With
    `ClusterConfig.num_workers_per_csx` above 1, or `num_workers=W` (when input_fn has no
    parameter of that name), W processes each call input_fn, and process w makes the batches w,
    w + W, …; they come in the order of a single process. A torch DataLoader over a map-style
    dataset is read in strides; any other loader is read whole by each process, which is of use
    when what follows the reading is slow. A sampler without a seed of its own follows torch's
    global generator. `id` counts the loaders of the process.

    A second executor continues the pass that the first one left in `unfinished`; a copy
    (`copy.copy`) starts from the beginning.
    """

    unfinished: Generator[Any, None, None] | None = None

    def __init__(self, input_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.id = next(_numbers)
        self._workers: int | None = None
        if "num_workers" in kwargs and not _takes(input_fn, "num_workers"):
            self._workers = kwargs.pop("num_workers")
            if type(self._workers) is not int or self._workers < 0:
                raise BackendConfigError(
                    f"DataLoader: num_workers = {self._workers!r}: expected 0 or more processes"
                )
        self._make = functools.partial(input_fn, *args, **kwargs)
        self._name = getattr(input_fn, "__qualname__", repr(input_fn))
        with watch_batch_sizes() as sizes:
            self._loader = self._make()
        if not hasattr(self._loader, "__iter__"):
            raise BackendConfigError(
                f"DataLoader: {self._name} returned a {type(self._loader).__name__}; expected an "
                "iterable of batches"
            )
        self._expected_size = sizes[-1] if sizes else None
        self._last_size: int | None = None
        self._pool: WorkerPool | None = None
        self._iterating = False
        self._loaded: tuple[dict[str, Any], bool] | None = None
        self._state_of_worker: Any = None
        self._steps = self._samples = 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Generator[Any, None, None]:
        """One pass. Raises LoaderError when a worker process fails or dies."""
        self._iterating = True
        try:
            for batch in self._batches():
                size = infer_batch_size(batch)
                self._check_size(size)
                self._last_size = size
                self._steps += 1
                self._samples += size or 0
                yield batch
        finally:
            self._iterating = False

    def __copy__(self) -> "DataLoader":
        copied = type(self).__new__(type(self))
        vars(copied).update(vars(self), id=next(_numbers))
        copied.unfinished = copied._pool = copied._state_of_worker = None
        copied._iterating = False
        copied._steps = copied._samples = 0
        return copied

    @property
    def dataloader(self) -> Any:
        """The user's loader."""
        return self._loader

    @property
    def batch_size(self) -> Any:
        """The user's loader's, if it tells, else the samples of its last batch, if there was one.

        A torch DataLoader with a `batch_sampler` does not tell.
        """
        told = getattr(self._loader, "batch_size", None)
        return self._last_size if told is None else told

    @property
    def is_restartable(self) -> bool:
        """Whether the user's loader has the methods of RestartableDataLoader."""
        return isinstance(self._loader, RestartableDataLoader)

    def state_dict(self) -> dict[str, Any]:
        """State after the last batch yielded; for any num_csx and number of processes the same.

        Raises BackendError when the loader is not restartable.
        """
        self._require_restartable()
        if self._state_of_worker is None:
            state = self._own_state(self._steps, self._samples)
        else:
            state = self._state_of_worker
        return self._loader.aggregate_state_dict([state])  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Continue from a `state_dict`, before iterating. Raises BackendError otherwise."""
        self._require_restartable()
        if self.unfinished is not None:
            self.unfinished.close()
            self.unfinished = None
        if self._iterating or self._pool is not None:
            raise BackendError(
                "DataLoader.load_state_dict: iteration has begun; load the state before that, "
                "or make a new DataLoader"
            )
        load_loader(self._loader, state_dict, strict)
        self._loaded = (state_dict, strict)
        self._steps = self._samples = 0

    def close(self) -> None:
        """Stop the worker processes, if any."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _batches(self) -> Iterator[Any]:
        workers = self._num_workers()
        if workers == 0:
            yield from self._loader
            return
        if self._pool is None:
            self._pool = WorkerPool(
                workers, self._make, self._loaded, restartable=self.is_restartable
            )
        for batch, state in self._pool.run(StreamPosition(self._steps, self._samples)):
            self._state_of_worker = state
            yield batch

    def _num_workers(self) -> int:
        """Processes to use; 0: this one."""
        from wafer_backend import backends

        if self._workers is not None:
            return self._workers
        if not backends.use_cs():
            return 0
        workers = backends.current_backend().cluster_config.num_workers_per_csx
        return workers if workers > 1 else 0

    def _own_state(self, steps: int, samples: int) -> Any:
        with worker_state(
            DataLoaderCheckpoint(samples_streamed=samples, appliance_step=steps, worker_step=steps)
        ):
            return self._loader.state_dict()

    def _require_restartable(self) -> None:
        methods = [name for name in vars(RestartableDataLoader) if name.endswith("state_dict")]
        missing = [name for name in methods if not hasattr(self._loader, name)]
        if missing:
            raise BackendError(
                f"DataLoader: {self._name}'s {type(self._loader).__name__} is not restartable: "
                f"it has no {', no '.join(missing)}"
            )

    def _check_size(self, size: int | None) -> None:
        """Warn once when the first batch is not what get_streaming_batch_size returned."""
        expected, self._expected_size = self._expected_size, None
        if expected is not None and size is not None and size != expected:
            warnings.warn(
                f"{self._name} asked get_streaming_batch_size for {expected} and yields batches of "
                f"{size}: does it divide them? The batch of a loader is the global batch here",
                stacklevel=4,
            )


def load_loader(loader: Any, state_dict: dict[str, Any], strict: bool) -> None:
    """Load an aggregated state into a user's loader; older ones take no `strict`."""
    strictly = {"strict": strict}
    accepted = strictly if _takes(loader.deaggregate_state_dict, "strict") else {}
    own = loader.deaggregate_state_dict(state_dict, **accepted)
    loader.load_state_dict(own, **(strictly if _takes(loader.load_state_dict, "strict") else {}))


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
