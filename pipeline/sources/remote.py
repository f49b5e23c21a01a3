"""Inputs behind URLs: the files that a URL names, and their bytes in order.

A URL that holds a password is refused: who may read is the business of fsspec and the environment.
"""

import posixpath
import re
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from pipeline.core.errors import InputError, ResourceError
from pipeline.sources.formats import find_suffix, is_text
from pipeline.sources.listing import Listing, StoredFile
from pipeline.sources.store import (
    WEB,
    ask_once,
    ask_store,
    ask_version,
    file_system,
    persist,
    redact_url,
    version,
)
from pipeline.sources.streams import change_error

_MAGIC = re.compile(r"[^/]*[*\[]")
"""The part of a path that holds the first wildcard; `?` begins a query."""
_HEAD = 64
_SKIP = 1 << 20
_READ_AHEAD = 8 << 20


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


def _files(url: str) -> tuple[str, tuple[StoredFile, ...]]:
    """(root, files) of a URL."""
    system, name = file_system(url)
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


def open_remote(location: str) -> BinaryIO:
    """A file behind a URL as a binary file. Raises InputError when it is not there."""
    return RemoteFile(location)  # type: ignore[return-value]


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
        system, name = file_system(self._location)
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
                    piece = ask_once(self._location, self._file.read, left)
                    if not piece:
                        return self._check_end(self._below + len(data))
                    data.extend(piece)
            except ResourceError:
                self._is_broken = True
                raise

        persist(attempt)
        self._below += len(data)
        return bytes(data)

    def _reopened(self, offset: int) -> Any:
        """The file opened again, at an offset."""
        if ask_once(self._location, ask_version, self._location) != self._version:
            raise change_error(redact_url(self._location))
        file = ask_once(self._location, self._opened)
        while offset and (piece := ask_once(self._location, file.read, min(_SKIP, offset))):
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
