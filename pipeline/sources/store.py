"""What answers for a file behind a URL, through fsspec: what says that the file changed, how often
it is asked while it fails, and what its errors mean.

Who may read is the business of fsspec and the environment; query strings, which may be signatures,
are in no message and no published file.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pipeline.core.errors import InputError, ResourceError, escape_text
from pipeline.sources.streams import change_error

WEB = ("http", "https")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRETS = re.compile(r"(?<=://)[^/\s@]*@|\?[^\s'\")]*")
_VERSIONS = (
    "etag",
    "e_tag",
    "md5",
    "content-md5",
    "checksum",
    "last-modified",
    "lastmodified",
    "last_modified",
    "updated",
    "modified",
    "mtime",
    "created",
)
"""Keys, in any case, of what stores say of a file: the first that is there tells its content."""
_NO_BUCKET = ("NoSuchBucket", "bucket does not exist", "ContainerNotFound")
_NOT_ALLOWED = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "NoCredentialsError",
    "Unable to locate credentials",
    "DefaultCredentialsError",
    "AuthenticationFailed",
    "Anonymous caller",
    "Forbidden",
)
"""What errors of stores call these, in their names, codes or words."""
_WAITS = (1, 2, 4, 8, 15)
"""Seconds before a store that failed is asked again."""
_INSTALL = "pip install 'wafermill[remote]', and for s3:// and the like the package of that store"


class RefusedError(InputError):
    """A store does not hand out a file: it is not there, or access is denied."""


def is_url(path: str) -> bool:
    """Whether a path is a URL."""
    return _URL.match(path) is not None


def redact_url(url: str) -> str:
    """A URL fit for messages: no user, password or query.

    >>> redact_url("https://me:secret@host/a.jsonl?signature=x")
    'https://host/a.jsonl'
    """
    return _SECRETS.sub("", url)


def version(location: str) -> tuple[int, str | None]:
    """(size, what tells the content apart; None where the store says nothing) of a file."""

    version: tuple[int, str | None] = ask_store(location, ask_version, location)
    return version


def ask_version(location: str) -> tuple[int, str | None]:
    """`version`, asked once. Raises whatever errors the store has."""
    return _read_version(*file_system(location))


def _read_version(system: Any, name: str) -> tuple[int, str | None]:
    info = {str(key).lower(): value for key, value in system.info(name).items()}
    content = next((f"{key} {info[key]}" for key in _VERSIONS if info.get(key)), None)
    return int(info["size"] or 0), content


@dataclass(frozen=True)
class Store:
    """What answers for one file: its file system, and what that calls the file; `version` is that
    of the bytes that are read. Its methods raise whatever errors the store has."""

    location: str
    system: Any
    name: str
    version: tuple[int, str | None]

    def read(self, start: int, stop: int) -> bytes:
        """The bytes of a range, or fewer at the end of the file."""
        is_open = not self.system.async_impl and _opens_to_read(self.system)
        options = {"cache_type": "none"} if is_open else {}
        data: bytes = self.system.cat_file(self.name, start, stop, **options)
        return data

    def check_unchanged(self) -> None:
        """Raise InputError when there is another file by now."""
        if _read_version_now(self.location, self.system, self.name) != self.version:
            raise change_error(redact_url(self.location))


def find_store(location: str) -> Store:
    """The store of a file. Raises whatever errors it has."""
    system, name = file_system(location)
    return Store(location, system, name, _read_version_now(location, system, name))


def _read_version_now(location: str, system: Any, name: str) -> tuple[int, str | None]:
    """Not that of a listing, in which some stores spell it otherwise."""
    if urlsplit(location).scheme != "hf":  # where a commit never changes, and asking counts
        system.invalidate_cache()
    return _read_version(system, name)


def _opens_to_read(system: Any) -> bool:
    """Whether a range is read through a file, which would read on beyond it."""
    from fsspec import AbstractFileSystem

    return type(system).cat_file is AbstractFileSystem.cat_file


def file_system(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and what it calls the file."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(f"{redact_url(url)}: needs fsspec; {_INSTALL}") from error
    web = {"headers": {"Accept-Encoding": "identity"}, "client_kwargs": {"auto_decompress": False}}
    try:
        opened: tuple[Any, str] = url_to_fs(url, **(web if urlsplit(url).scheme in WEB else {}))
    except (ImportError, ValueError) as error:
        reason = escape_text(redact_url(str(error)))
        raise InputError(
            f"{redact_url(url)}: cannot read such URLs: {reason}; {_INSTALL}"
        ) from error
    return opened


def ask_store(url: str, question: Any, *arguments: Any) -> Any:
    """The answer of a store, which is asked again while it fails.

    Raises ResourceError when it goes on to fail, InputError for what asking again cannot mend.
    """
    return persist(lambda: ask_once(url, question, *arguments))


def persist(attempt: Callable[[], Any]) -> Any:
    """What the first attempt gives that does not end in a ResourceError, or the error of the last,
    half a minute later."""
    for seconds in _WAITS:
        try:
            return attempt()
        except ResourceError:
            time.sleep(seconds)
    return attempt()


def ask_once(url: str, question: Any, *arguments: Any) -> Any:
    """The answer of a store. Every store has errors of its own, so any of them counts."""
    try:
        return question(*arguments)
    except (InputError, ResourceError):
        raise
    except Exception as error:
        raise _trouble(url, error) from error


def _trouble(url: str, error: Exception) -> InputError | ResourceError:
    """What the error of a store means. fsspec calls it not found whatever kept a web server from
    answering; the cause tells more."""
    store = urlsplit(url).netloc.rpartition("@")[2]
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
    reason = escape_text(redact_url(str(cause))) or type(cause).__name__
    status = getattr(cause, "status", None)
    if _says(cause, *_NO_BUCKET):
        return RefusedError(f"{redact_url(url)}: there is no bucket {store}; correct its name")
    if (
        cause is None
        or status in (404, 410)
        or (
            isinstance(error, FileNotFoundError)
            and not isinstance(cause, OSError)
            and urlsplit(url).scheme not in WEB
        )
    ):
        return RefusedError(f"{redact_url(url)}: not found; correct the path")
    if isinstance(cause, PermissionError) or status in (401, 403) or _says(cause, *_NOT_ALLOWED):
        return RefusedError(
            f"{redact_url(url)}: access denied ({reason}); set credentials that may read {store} "
            "in the environment or in the configuration of fsspec"
        )
    return ResourceError(
        f"{redact_url(url)}: the store does not answer: {reason}; run the same command again"
    )


def _says(error: BaseException | None, *words: str) -> bool:
    """Whether an error, or one that led to it, has such a name or says one of these words."""
    while error is not None:
        message = f"{type(error).__name__} {error}".lower()
        if any(word.lower() in message for word in words):
            return True
        error = error.__cause__ or error.__context__
    return False
