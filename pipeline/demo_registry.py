"""The registry of the demo: one invented work with its text, made in the cache on first use."""

from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import InputError, IntegrityError
from pipeline.provenance.registry import load_registry
from pipeline.provenance.registry.importing import ImportOptions, import_works
from pipeline.sources.quickstart import QUICKSTART, cache_directory
from pipeline.sources.registered_work import LIST, TEXT

BUILTIN_REGISTRY = f"builtin:{QUICKSTART}"
_TEXT_FILE = "ferry.txt"


def demo_registry() -> Path:
    """The directory of the registry. Raises ResourceError when the cache cannot be written."""
    digest = storage.hash_bytes("\n".join((LIST, TEXT)).encode())[:12]
    directory = cache_directory() / f"{QUICKSTART}-registry-{digest}"
    try:
        load_registry(directory)
    except (InputError, IntegrityError):
        _make(directory)
    return directory


def _make(directory: Path) -> None:
    beside = directory.with_suffix(".works")
    storage.publish(beside / "works.csv", LIST.encode())
    storage.publish(beside / _TEXT_FILE, TEXT.encode())
    import_works([beside / "works.csv"], directory, ImportOptions(name=QUICKSTART, texts=beside))
