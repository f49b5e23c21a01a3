"""Files that tasks of this machine published are made durable while other tasks run, and all before
their stage commits. So no task waits for the disk, and each directory is synced once a stage.

Until then a power cut may take what tasks of the stage made; their records are then found to name
files that are gone or damaged, and those tasks run again.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.core import storage
from pipeline.core.directories import sync_directory

_THREADS = 4
"""What several threads sync at a time, a file system commits together."""


class GroupCommit:
    """The files that one stage publishes below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(_THREADS)
        self._files: list[Future[None]] = []
        self._directories = {root}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, paths: Iterable[str]) -> None:
        """Begin with files, by their paths from `root` on."""
        for path in paths:
            self._files.append(self._pool.submit(storage.make_durable, self._root / path))
            self._directories |= {self._root / above for above in Path(path).parents}

    def finish(self) -> None:
        """Wait until all files are durable, then the directories around them. Raises ResourceError
        for what the disk refused."""
        for file in self._files:
            file.result()
        list(self._pool.map(sync_directory, self._directories))
