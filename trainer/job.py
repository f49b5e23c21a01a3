"""A run's entry in the list of jobs; trouble with the list is said and never stops a run."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.core.errors import ConfigError, ResourceError
from trainer.job_store import JobListing, JobStore, parse_labels

Say = Callable[[str], None]
INTERRUPTED = 130
_TROUBLE = (ResourceError, ConfigError)


@dataclass(frozen=True)
class JobEntry:
    """What a run tells of itself; `listing` None: nobody is told."""

    listing: JobListing | None
    say: Say

    def running(self) -> None:
        """The work proper begins."""
        if self.listing is not None:
            self._try(self.listing.running)

    def ended(self, exit_code: int) -> None:
        """It is over, with this exit code."""
        if self.listing is not None:
            listing = self.listing
            self._try(lambda: listing.ended(exit_code))

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except _TROUBLE as error:
            self.say(f"The list of jobs could not be updated: {error}")


@contextlib.contextmanager
def list_job(labels: Sequence[str], systems: int, say: Say, *, really: bool) -> Iterator[JobEntry]:
    """List this process as a job for the life of the block, or do not (`really`).

    `labels`: key=value. `systems`: emulated CS-2 systems, 0 without. The block records how it ends
    (`JobEntry.ended`); an exception counts as a failure, KeyboardInterrupt as exit code 130. Raises
    ConfigError for a malformed label.
    """
    parsed = {key: value or "" for key, value in parse_labels(labels).items()}
    entry = JobEntry(_register(parsed, systems, say) if really else None, say)
    try:
        yield entry
    except BaseException as error:
        entry.ended(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1)
        raise


def _register(labels: Mapping[str, str], systems: int, say: Say) -> JobListing | None:
    try:
        listing = JobStore.default().register(command=sys.argv, systems=systems, labels=labels)
    except _TROUBLE as error:
        say(f"`train jobs get` will not show this run: {error}")
        return None
    say(f"Job id: {listing.name}")
    return listing
