"""JSON files that say what a directory is."""

import json
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError


def read_json(path: Path, directory: str) -> Any:
    """The value in `path`. Raises InputError when it is no JSON or not there; then its directory is
    not a `directory`, such as "model directory"."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path.parent}: not a {directory}: it has no {path.name}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
