"""The directory of a conversion: refused when it holds anything else, whole once it is recorded.

`conversion.json` comes first, saying what is being made, and again last, with size and hash of
every file. The same command after an interruption makes the files again; after the end it verifies
them and writes nothing.
"""

from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer.convert.sources import read_json

NAME = "conversion.json"
FORMAT = 1


def begin(out: Path, identity: dict[str, Any]) -> bool:
    """Prepare `out` for what `identity` describes; True when it is all there already.

    Raises ConfigError when it holds something else, IntegrityError when a file of it is damaged.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: this is a file; give a directory")
    if (out / NAME).is_file():
        known = read_json(out / NAME)
        _refuse_other(out, known.get("conversion"), identity)
        if "files" in known:
            for name, entry in known["files"].items():
                storage.verify_file(out / name, entry["hash"])
            return True
    elif out.exists() and not all(p.name.startswith(storage.TEMP_MARK) for p in out.iterdir()):
        raise ConfigError(f"--out {out}: it holds other files; give a new directory")
    storage.sweep_temps(out)
    storage.write_json(out / NAME, {"format": FORMAT, "conversion": identity})
    return False


def finish(out: Path, identity: dict[str, Any], files: dict[str, storage.WrittenFile]) -> None:
    """Record that all of `files` (paths inside `out`) are there."""
    entries = {name: {"size": file.size, "hash": file.hash} for name, file in files.items()}
    record = {"format": FORMAT, "conversion": identity, "files": entries}
    storage.write_json(out / NAME, record)


def _refuse_other(out: Path, known: Any, identity: dict[str, Any]) -> None:
    before = known if isinstance(known, dict) else {}
    for key in sorted(identity.keys() | before.keys()):
        if before.get(key) != identity.get(key):
            raise ConfigError(
                f"--out {out}: it holds another conversion ({key} was "
                f"{str(before.get(key))[:80]}); give a new directory"
            )
