"""The tree of errors a user can meet, each with the exit code of its family.

PrepError
 +-- ConfigError     2   a config or option is wrong
 +-- InputError      3   the input data is wrong or missing
 +-- FunctionError   3   a function of the user's own failed, or is none that can be repeated
 +-- IntegrityError  4   published bytes or counts do not agree with what was recorded
 +-- ResourceError   5   disk, memory, lock or worker trouble
"""


class PrepError(Exception):
    """Base class: its message is one clear line for the user, its `exit_code` what the command
    returns. In the message, copies here of what is in a bucket are named by URL.
    """

    exit_code = 1

    def __str__(self) -> str:
        from pipeline.core.mirror.paths import name_urls  # which imports this

        return name_urls(super().__str__())


class ConfigError(PrepError):
    """A config file or command option is wrong; nothing was written."""

    exit_code = 2


class InputError(PrepError):
    """Input data is missing, damaged or of the wrong layout."""

    exit_code = 3


class FunctionError(PrepError):
    """A function that the config names failed on a document: no other task need try it."""

    exit_code = InputError.exit_code


class IntegrityError(PrepError):
    """Published bytes, hashes or counts disagree."""

    exit_code = 4


class NondeterminismError(IntegrityError):
    """Two attempts at one task with the same fingerprint produced different bytes."""


class ResourceError(PrepError):
    """The machine could not do it: disk full, lock held, workers dying."""

    exit_code = 5


class ReadOnlyError(ResourceError):
    """A directory that is there may not be written."""


def escape_text(text: str, limit: int = 200) -> str:
    """Return `text` safe to print in a message: control characters escaped, cut at `limit`
    characters.

    >>> escape_text("a" + chr(27) + "b")
    'a\\\\x1bb'
    """
    shown = text if len(text) <= limit else text[:limit] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
