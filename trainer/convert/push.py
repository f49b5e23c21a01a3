"""`train push`: a model that `train convert` wrote, to a repository of the Hugging Face Hub."""

from collections.abc import Callable
from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import InputError
from pipeline.core.hub import CARD, Repository, Upload, upload_files
from trainer.convert.conversion import CONVERSION_FILE
from trainer.convert.sources import read_json_object


def push_model(
    directory: Path, to: Repository, dry_run: bool, say: Callable[[str], None]
) -> list[Upload]:
    """Upload the files of a conversion, verified by their hashes, and a README.md that is beside
    them; with `dry_run` only list them, which needs no network. Raises InputError for a directory
    without a finished conversion, IntegrityError for damage, ConfigError for what the Hub
    refuses."""
    uploads = list_model(directory)
    if uploads[-1].path != CARD:
        say(f"no {directory / CARD}: `train card MODEL_DIR --out {directory / CARD}` writes one")
    if not dry_run:
        upload_files(to, uploads, say)
    return uploads


def list_model(directory: Path) -> list[Upload]:
    """The files of a conversion, its record, and the card at last, if there is one."""
    record = directory / CONVERSION_FILE
    files = read_json_object(record).get("files") if record.is_file() else None
    if not isinstance(files, dict):
        raise InputError(
            f"{directory}: no finished {CONVERSION_FILE}: expected a directory written by `train "
            "convert MODEL_DIR --src-fmt wafermill --tgt-fmt hf --out DIR`"
        )
    for name, entry in files.items():
        storage.verify_file(directory / name, entry["hash"])
    names = [*sorted(set(files) - {CARD}), CONVERSION_FILE]
    names += [CARD] if (directory / CARD).is_file() else []
    return [Upload(name, directory / name, (directory / name).stat().st_size) for name in names]
