"""Errors of the `train` commands: one line on stderr, and the exit code of their family."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from pipeline.core.errors import ConfigError, PrepError, escape_text

_LONGEST = 2000  # characters of a line of a message


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error of this toolkit as `error: MESSAGE`, a line for each mistake of a config, and
    raise `typer.Exit` with its exit code: its own for a PrepError, that of ConfigError for what the
    backend refuses."""
    try:
        yield
    except Exception as error:
        code = error.exit_code if isinstance(error, PrepError) else _code_of_backend(error)
        if code is None:
            raise
        mistakes = str(error).split("\n") if isinstance(error, ConfigError) else [str(error)]
        print("error:", "\n".join(escape_text(m, _LONGEST) for m in mistakes), file=sys.stderr)
        raise typer.Exit(code) from error


def _code_of_backend(error: Exception) -> int | None:
    """Exit code of an error of the backend, None of any other. The backend imports torch, which a
    command that ends well or with a PrepError may not need."""
    from trainer.errors import as_prep_errors
    from wafer_backend.errors import BackendError

    if not isinstance(error, BackendError):
        return None
    try:
        with as_prep_errors():
            raise error
    except PrepError as known:
        return known.exit_code
    except BackendError:
        return ConfigError.exit_code
