"""Inputs behind URLs, through fsspec, and data sets of the Hugging Face Hub by name: what they
name, what says that they changed, their bytes.

Who may read them is the business of fsspec and the environment: a URL that holds a password is
refused, and query strings, which may be signatures, are in no message and no published file. Of a
data set on the Hub `datasets` says which files make up a split; they are read at the commit that
the name meant when it was looked up, which is part of every file's path and so of every key.
"""

import logging
import posixpath
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pipeline.core.errors import InputError, ResourceError, escape_text
from pipeline.sources.formats import find_suffix, is_text
from pipeline.sources.listing import Listing, StoredFile
from pipeline.sources.streams import change_error


class RefusedError(InputError):
    """A store does not hand out a file: it is not there, or access is denied."""


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
WEB = ("http", "https")
_MAGIC = re.compile(r"[^/]*[*\[]")
"""The part of a path that holds the first wildcard; `?` begins a query."""

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

_HEAD = 64
_SKIP = 1 << 20
_READ_AHEAD = 8 << 20


def is_url(path: str) -> bool:
    """Whether a path is a URL."""
    return _URL.match(path) is not None


def redact_url(url: str) -> str:
    """A URL fit for messages: no user, password or query.

    >>> redact_url("https://me:secret@host/a.jsonl?signature=x")
    'https://host/a.jsonl'
    """
    return _SECRETS.sub("", url)


def remote(url: str) -> Listing:
    """What a URL names: a file, a directory (ends in / or is one to the store) or a glob.

    Raises InputError for a URL that cannot be served, and ResourceError when the store fails.
    """
    parts = urlsplit(url)
    if parts.password or parts.username:
        raise InputError(
            f"{redact_url(url)}: the URL holds a user name or password; set it in the environment "
            "or in the configuration of fsspec instead"
        )
    if "::" in url:
        raise InputError(f"{redact_url(url)}: chained URLs are not supported")
    root, files = ask_store(url, _files, url)
    return Listing(root, files, is_text(unquote(parts.path)))


def version(location: str) -> tuple[int, str | None]:
    """(size, what tells the content apart; None where the store says nothing) of a file."""

    version: tuple[int, str | None] = ask_store(location, _ask_version, location)
    return version


def _ask_version(location: str) -> tuple[int, str | None]:
    return _read_version(*_file_system(location))


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


def _read_version_now(location: str, system: Any, name: str) -> tuple[int, str | None]:
    """Not that of a listing, in which some stores spell it otherwise."""
    if urlsplit(location).scheme != "hf":  # where a commit never changes, and asking counts
        system.invalidate_cache()
    return _read_version(system, name)


def _opens_to_read(system: Any) -> bool:
    """Whether a range is read through a file, which would read on beyond it."""
    from fsspec import AbstractFileSystem

    return type(system).cat_file is AbstractFileSystem.cat_file


def find_store(location: str) -> Store:
    """The store of a file. Raises whatever errors it has."""
    system, name = _file_system(location)
    return Store(location, system, name, _read_version_now(location, system, name))


def _file_system(url: str) -> tuple[Any, str]:
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


_INSTALL = "pip install 'wafermill[remote]', and for s3:// and the like the package of that store"


def ask_store(url: str, question: Any, *arguments: Any) -> Any:
    """The answer of a store, which is asked again while it fails.

    Raises ResourceError when it goes on to fail, InputError for what asking again cannot mend.
    """
    return _persist(lambda: _ask_once(url, question, *arguments))


def _persist(attempt: Callable[[], Any]) -> Any:
    """What the first attempt gives that does not end in a ResourceError, or the error of the last,
    half a minute later."""
    for seconds in _WAITS:
        try:
            return attempt()
        except ResourceError:
            time.sleep(seconds)
    return attempt()


def _ask_once(url: str, question: Any, *arguments: Any) -> Any:
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


def _files(url: str) -> tuple[str, tuple[StoredFile, ...]]:
    """(root, files) of a URL."""
    system, name = _file_system(url)
    path = name.partition("?")[0] if urlsplit(url).scheme in WEB else name
    magic = _MAGIC.search(path)
    if magic:
        from fsspec.utils import glob_translate

        root, below = path[: magic.start()], path[magic.start() :]
        depth = None if "**" in below else below.count("/") + 1
        matches = re.compile(glob_translate(path)).fullmatch
        inside = {n: i for n, i in _below(system, root, depth).items() if matches(n)}
        return _plain(system, root), _list_files(system, inside, root)
    if url.endswith("/") or (find_suffix(path) is None and system.isdir(name)):
        return _plain(system, path), _list_files(system, _below(system, name, None), path)
    info = system.info(name)
    if info.get("type") == "directory":
        return _plain(system, path), _list_files(system, _below(system, name, None), path)
    return _plain(system, posixpath.dirname(path)), _list_files(system, {name: info}, None)


def _below(system: Any, root: str, depth: int | None) -> dict[str, Any]:
    """Name -> what the store says of it, for all files so many directories deep (None: any).

    Listed directory by directory, since the stores' own searches pass over what cannot be listed.
    """
    infos: dict[str, Any] = {}
    visited = {root.rstrip("/")}
    level = [root]
    while level and depth != 0:
        entries = {i["name"]: i for directory in level for i in system.ls(directory, detail=True)}
        infos |= {name: info for name, info in entries.items() if info["type"] == "file"}
        level = [
            name
            for name, info in entries.items()
            if info["type"] == "directory" and name.rstrip("/") not in visited
        ]
        visited |= {name.rstrip("/") for name in level}
        depth = None if depth is None else depth - 1
    return infos


def _list_files(system: Any, infos: dict[str, Any], root: str | None) -> tuple[StoredFile, ...]:
    """The files among what a store lists, hidden files below `root` apart."""
    files = []
    for name, info in infos.items():
        inside = "" if root is None else name.removeprefix(root)
        if info["type"] != "file" or any(p.startswith(".") for p in inside.split("/") if p):
            continue
        size = info["size"] if info["size"] is not None else system.info(name)["size"]
        location = system.unstrip_protocol(name)
        if size is None:
            raise InputError(
                f"{redact_url(location)}: the server does not report its size; download the file "
                "and give its path"
            )
        files.append(StoredFile(_plain(system, name), int(size), location))
    return tuple(files)


def _plain(system: Any, name: str) -> str:
    """A name such as /bucket/sub/a b.jsonl, without protocol or query."""
    url = system.unstrip_protocol(name)
    scheme, _, path = url.partition("://")
    if scheme in WEB:
        path = unquote(path.partition("?")[0].partition("#")[0])
    return f"/{scheme}/{path.strip('/')}"


class RemoteFile:
    """The bytes of a file behind a URL, read in order. Going back to the first 64 bytes costs
    nothing; other ways back may open the file again, as a store does that fails on the way.

    Raises ResourceError when the store goes on to fail or to end too early, InputError for a file
    that changed meanwhile.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._version = version(location)
        self._size = self._version[0]
        self._open()

    def _open(self) -> None:
        self._file: Any = ask_store(self._location, self._opened)
        self._is_broken = False
        self._below = 0
        self._head = b""
        self._position = 0
        self._head = self._read_below(_HEAD)

    def _opened(self) -> Any:
        system, name = _file_system(self._location)
        if urlsplit(self._location).scheme in WEB:
            return system.open(name, "rb", block_size=0)
        return system.open(name, "rb", block_size=_READ_AHEAD, cache_type="readahead")

    def _read_below(self, size: int) -> bytes:
        """So many bytes, or all that are left."""
        data = bytearray()

        def attempt() -> None:
            try:
                if self._is_broken:
                    self._file = self._reopened(self._below + len(data))
                    self._is_broken = False
                while left := size - len(data):
                    piece = _ask_once(self._location, self._file.read, left)
                    if not piece:
                        return self._check_end(self._below + len(data))
                    data.extend(piece)
            except ResourceError:
                self._is_broken = True
                raise

        _persist(attempt)
        self._below += len(data)
        return bytes(data)

    def _reopened(self, offset: int) -> Any:
        """The file opened again, at an offset."""
        if _ask_once(self._location, _ask_version, self._location) != self._version:
            raise change_error(redact_url(self._location))
        file = _ask_once(self._location, self._opened)
        while offset and (piece := _ask_once(self._location, file.read, min(_SKIP, offset))):
            offset -= len(piece)
        return file

    def _check_end(self, offset: int) -> None:
        if offset < self._size:
            raise ResourceError(
                f"{redact_url(self._location)}: ended after {offset:,} of {self._size:,} "
                "bytes; run the same command again"
            )

    def read(self, size: int = -1) -> bytes:
        """Read on; all that is left when `size` is negative."""
        size = max(0, self._size - self._position) if size < 0 else size
        data = self._head[self._position : self._position + size]
        if len(data) < size:
            data += self._read_below(size - len(data))
        self._position += len(data)
        return data

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    def seek(self, offset: int) -> int:
        """Go to an absolute offset."""
        if offset < self._below and not (offset <= len(self._head) == self._below):
            self._file.close()
            self._open()
        self._position = min(offset, self._below)
        while self._position < offset and self.read(min(_SKIP, offset - self._position)):
            pass
        return self._position

    def close(self) -> None:
        """Close the connection."""
        self._file.close()


def open_remote(location: str) -> BinaryIO:
    """A file behind a URL as a binary file. Raises InputError when it is not there."""
    return RemoteFile(location)  # type: ignore[return-value]


_NAME = re.compile(
    r"hf:(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?"
    r"((:(?P<config>[\w.-]+))?:(?P<split>[\w.-]+))?"
)
_FILE = re.compile(r"hf://datasets/(?P<name>[^@]+)@(?P<revision>[0-9a-f]{40})/(?P<path>.+)")


@dataclass(frozen=True)
class HubName:
    """`hf:NAME[@REVISION][[:CONFIG]:SPLIT]`, taken apart."""

    name: str
    revision: str | None
    config: str | None
    split: str | None


def is_hub_name(path: str) -> bool:
    """Whether a path is the name of a data set on the Hub."""
    return path.startswith("hf:") and not path.startswith("hf://")


def parse_name(path: str) -> HubName:
    """The parts of a name.

    >>> parse_name("hf:allenai/c4@main:en:train")
    HubName(name='allenai/c4', revision='main', config='en', split='train')

    Raises InputError for anything else.
    """
    match = _NAME.fullmatch(path)
    if match is None:
        raise InputError(
            f"{escape_text(path)}: expected hf:NAME, hf:NAME:SPLIT or hf:NAME@REVISION:CONFIG:SPLIT"
        )
    return HubName(match["name"], match["revision"], match["config"], match["split"])


def hub(path: str) -> Listing:
    """The files of a data set, or of one of its splits. Raises InputError."""
    parsed = parse_name(path)
    files = _files_of_split(path, parsed, _data_files(path, parsed))
    return Listing("/hf", tuple(_find_file(path, url) for url in files), text=True)


def _data_files(path: str, parsed: HubName) -> dict[str, list[str]]:
    """Split -> URLs of its files, as `datasets` finds them."""
    try:
        import datasets

        with _silence("huggingface_hub"):
            builder = datasets.load_dataset_builder(
                parsed.name, parsed.config, revision=parsed.revision
            )
    except Exception as error:  # the Hub, its cache and the network have errors of their own
        reason = escape_text(redact_url(str(error)))
        raise InputError(
            f"{path}: cannot find it on the Hugging Face Hub: {type(error).__name__}: {reason}; "
            "without a network, load it with `datasets` on a machine that is online, call "
            "save_to_disk, and give that directory as the path"
        ) from error
    files: Any = builder.config.data_files or {}
    return {str(split): [str(url) for url in urls] for split, urls in files.items()}


@contextmanager
def _silence(logger: str) -> Iterator[None]:
    """Without the lines that each of its attempts to connect writes."""
    log = logging.getLogger(logger)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _files_of_split(path: str, parsed: HubName, splits: dict[str, list[str]]) -> list[str]:
    if parsed.split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if parsed.split in splits:
        return splits[str(parsed.split)]
    advice = (
        "name one of them"
        if parsed.split is None
        else f"there is no {parsed.split}; name one of them"
    )
    raise InputError(
        f"{path}: has the splits {', '.join(splits) or 'none that are files'}; {advice}, such as "
        f"hf:{parsed.name}:{next(iter(splits), 'train')}"
    )


def _find_file(path: str, url: str) -> StoredFile:
    match = _FILE.fullmatch(url)
    if match is None:
        raise InputError(
            f"{path}: {redact_url(url)} is not a file of one revision on the Hub; give its "
            "files by URL, such as hf://datasets/NAME@REVISION/data/*.parquet"
        )
    size, _ = version(url)
    return StoredFile(f"/hf/{match['name']}@{match['revision']}/{match['path']}", size, url)
