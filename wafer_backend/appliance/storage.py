"""Where checkpoints may lie: local files. Addresses of S3 are recognised and refused."""

import os
from pathlib import Path

from wafer_backend.errors import CheckpointError


class _Local:
    """A local file."""

    def __init__(self, path: str | Path) -> None:
        if not self.is_valid_path(path):
            raise CheckpointError(f"{path}: only local files are supported; copy it, use its path")
        self.path = Path(path)

    @classmethod
    def is_valid_path(cls, path: str | Path) -> bool:
        """Whether it is the path of a local file."""
        return "://" not in str(path)

    @classmethod
    def path_exists(cls, path: str | Path) -> bool:
        """Whether there is something at a path."""
        return os.path.exists(path)


class StorageReader(_Local):
    """Reads checkpoints."""

    @classmethod
    def get_type(cls, path: str | Path) -> type["H5Reader"]:
        """The reader for a path."""
        return H5Reader

    @property
    def fstat(self) -> os.stat_result:
        """Size and times of the file."""
        return os.stat(self.path)


class H5Reader(StorageReader):
    """Reads `.mdl` files."""


class StorageWriter(_Local):
    """Writes checkpoints."""


class H5Writer(StorageWriter):
    """Writes `.mdl` files."""


class StorageDeleter(_Local):
    """Deletes checkpoints."""

    @classmethod
    def get(cls, path: str | Path) -> "StorageDeleter":
        """The deleter for a path."""
        return cls(path)

    def delete(self) -> None:
        """Remove the file."""
        os.unlink(self.path)


class _S3(_Local):
    """An address of S3, which this package neither reads nor writes."""

    def __init__(self, path: str | Path) -> None:
        raise CheckpointError(f"{path}: S3 is not supported; copy the file and use its path")

    @classmethod
    def is_valid_path(cls, path: str | Path) -> bool:
        """Whether it is an address of S3."""
        return str(path).startswith("s3://")

    @classmethod
    def path_exists(cls, path: str | Path) -> bool:
        """Raises CheckpointError for an address of S3; no local file is one."""
        if cls.is_valid_path(path):
            cls(path)
        return False


class S3Reader(_S3):
    """Refused."""


class S3Writer(_S3):
    """Refused."""


class S3Deleter(_S3):
    """Refused."""
