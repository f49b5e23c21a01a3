"""`DataExecutor`: the loop over a loader, with the closures at the end of every step."""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.core import storage
from wafer_backend.distributed import ClusterConfig
from wafer_backend.errors import BackendConfigError, LoaderError
from wafer_backend.utils.data.batches import infer_batch_size
from wafer_backend.utils.data.schedule import Schedule, cadence, period
from wafer_backend.utils.profiler import ExecutorProfiler

_numbers = itertools.count(1)


class DataExecutor:
    """Iterate over it: `num_steps` batches, one pass of the loader by default.

    A loader that is exhausted earlier is iterated again. `checkpoint_steps`: at which steps
    checkpoint closures run, every so many and the last, or a Schedule. `activation_steps`: the
    script looks at outputs every so many steps; closures run at every step all the same.
    `cs_config`: the cluster, as older scripts give it. `writer`: kept as an attribute.
    `micro_batch_size`: as `backends.csx.performance.micro_batch_size`. `profiler_activities`: a
    `profiler.profile`, active while this runs; a list of names is accepted without effect.
    `listeners` other than an empty list are not supported.

    After `break` the closures of the step it ended run as well; what they raise then is printed
    by Python, not raised. Raises BackendConfigError for impossible settings, LoaderError when
    the loader yields nothing.
    """

    def __init__(
        self,
        dataloader: Iterable[Any],
        num_steps: int | None = None,
        checkpoint_steps: int | Schedule | None = None,
        activation_steps: int | None = None,
        profiler_activities: Any = None,
        cs_config: ClusterConfig | None = None,
        writer: Any = None,
        listeners: list[Any] | None = None,
        micro_batch_size: Any = None,
    ) -> None:
        self.dataloader = dataloader
        self.num_steps = _length(dataloader) if num_steps is None else num_steps
        if type(self.num_steps) is not int or self.num_steps < 1:
            raise BackendConfigError(
                f"DataExecutor: num_steps = {self.num_steps!r}: expected steps, at least 1"
            )
        if listeners:
            raise BackendConfigError("DataExecutor: listeners are not supported")
        _configure(cs_config, micro_batch_size)
        self.checkpoint_steps = cadence(checkpoint_steps, self.num_steps, "checkpoint_steps")
        self.activation_steps = _common(activation_steps, self.checkpoint_steps)
        self.profiler_activities = profiler_activities or []
        self.writer = writer
        self.profiler = ExecutorProfiler()
        self.user_iteration = 0
        self._number = next(_numbers)

    @property
    def on_final_iteration(self) -> bool:
        """Whether the current step is the last."""
        return self.user_iteration == self.num_steps

    @property
    def is_checkpoint_step(self) -> bool:
        """Whether checkpoint closures run at the end of the current step."""
        return self.checkpoint_steps.match(self.user_iteration)

    @property
    def is_activation_step(self) -> bool:
        """Whether the script looks at the outputs of the current step."""
        return self.user_iteration % self.activation_steps == 0 or self.on_final_iteration

    @property
    def artifact_dir(self) -> Path:
        """A directory for files of this executor, made when first asked for."""
        from wafer_backend import backends

        directory = backends.current_backend().artifact_dir / "executors" / f"{self._number:06d}"
        storage.make_directory(directory)
        return directory

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[Any]:
        from wafer_backend import profiler, tracing

        self.user_iteration = 0
        self.profiler.rate_tracker.reset()
        tracing.set_executor(self)
        try:
            with profiler.activity_profile(self.profiler_activities):
                for batch in itertools.islice(self._batches(), _steps_to_run(self.num_steps)):
                    self.user_iteration += 1
                    try:
                        with profiler.step(self.user_iteration):
                            yield batch
                    finally:
                        self._end_step(batch)
        finally:
            tracing.set_executor(None)

    def _end_step(self, batch: Any) -> None:
        from wafer_backend import tracing

        self.profiler.rate_tracker.add(infer_batch_size(batch) or 0)
        tracing.run_closures(self)

    def _batches(self) -> Iterator[Any]:
        """The loader's batches, again and again."""
        for passes in itertools.count(1):
            empty = True
            for batch in self.dataloader:
                empty = False
                yield batch
            if empty:
                raise LoaderError(
                    f"the loader yields no batch in pass {passes}, and {self.num_steps} steps were "
                    f"asked for ({self.user_iteration} have run)"
                )


def _steps_to_run(num_steps: int) -> int:
    """All of them; one when the backend only plans or checks."""
    from wafer_backend import backends

    dry = backends.has_backend() and not backends.current_backend().is_e2e_execution
    return 1 if dry else num_steps


def _length(dataloader: Any) -> int:
    try:
        return len(dataloader)
    except TypeError as error:
        raise BackendConfigError(
            "DataExecutor: the loader has no length; give num_steps"
        ) from error


def _common(activation_steps: int | None, checkpoints: Schedule) -> int:
    """The greatest cadence that meets both; 1 when not given."""
    if activation_steps is None:
        return 1
    if type(activation_steps) is not int or activation_steps < 1:
        raise BackendConfigError(
            f"activation_steps = {activation_steps!r}: expected steps, at least 1"
        )
    return math.gcd(activation_steps, period(checkpoints))


def _configure(cs_config: ClusterConfig | None, micro_batch_size: Any) -> None:
    from wafer_backend import backends

    if cs_config is not None:
        backends.configure_cluster(cs_config)
    if micro_batch_size is not None:
        backends.csx.performance.micro_batch_size = micro_batch_size
