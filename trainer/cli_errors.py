"""Errors of the `train` commands: one line on stderr, and the exit code of their family."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from pipeline.core.errors import ConfigError, PrepError, printable
from trainer.errors import as_prep_errors
from wafer_backend.errors import BackendError

_LONGEST = 2000  # characters of a message


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error of this toolkit as `error: MESSAGE` and raise `typer.Exit` with its exit code:
    its own for a PrepError, that of ConfigError for what the backend refuses."""
    try:
        with as_prep_errors():
            yield
    except (PrepError, BackendError) as error:
        print(f"error: {printable(str(error), _LONGEST)}", file=sys.stderr)
        code = error.exit_code if isinstance(error, PrepError) else ConfigError.exit_code
        raise typer.Exit(code) from error
