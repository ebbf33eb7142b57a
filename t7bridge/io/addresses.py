"""Addresses of files: the URLs of all file systems that fsspec knows. The only importer of fsspec."""

from __future__ import annotations

import ipaddress
import re
import shutil
import socket
import tempfile
from _thread import allocate_lock
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import urlsplit

from ..errors import MissingFileError, T7BridgeError, TruncatedError, UnsupportedError

ARCHIVES = ("zip", "tar", "libarchive")
"""File systems whose files are members of an archive, which cannot be read by ranges where they are compressed."""
BLOCK_BYTES = 1 << 14
_MOST_BLOCKS = 512
"""Blocks that one request asks for at most: 8 MiB."""
_KEPT_BLOCKS = 1024
"""Blocks that are kept."""
_MOST_RUNS = 8
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified", "last_modified", "created", "CRC")
_CHECK = "Check the address and the connection; or download the file, and give its path."


def protocol_of(address: str) -> str:
    """Return `s3` for `s3://bucket/key`, `zip` for `zip://member::s3://bucket/key`; nothing for a path."""
    match = re.match(r"([\w+.-]{2,}):[:/]", address)  # one letter is a drive of Windows
    return match[1] if match else ""


@contextmanager
def errors_of(address: str, what: str, kind: type[T7BridgeError] = T7BridgeError, hint: str = "") -> Iterator[None]:
    """Make an error of ours from any other: each file system has its own.

    Args:
        address: named by the error.
        what: participle of what is done with it: `read`.
        kind: class of the error.
        hint: what to do next.
    """
    try:
        yield
    except T7BridgeError:
        raise
    except Exception as error:
        cause: Any = error.__cause__ or error  # over HTTP, a server that does not answer is a missing file for fsspec
        status = getattr(cause, "status", None)
        if kind is T7BridgeError and isinstance(error, FileNotFoundError) and (cause is error or status in (404, 410)):
            raise MissingFileError(f"cannot be {what}: no such file", file=address, hint=hint) from error
        reason = f"{status} {cause.message}" if status else " ".join(str(cause).split()) or type(cause).__name__
        raise kind(f"cannot be {what}: {reason.rstrip('.')}", file=address, hint=hint) from error


def connect(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        UnsupportedError: fsspec, or the library for this kind of file system, is not installed.
        T7BridgeError: the URL is invalid.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UnsupportedError("fsspec is not installed", file=address, hint="pip install fsspec aiohttp") from error
    options = {}
    for part in address.split("::"):
        protocol = protocol_of(part)
        if protocol in ("http", "https"):
            is_inside = _is_inside(urlsplit(part).hostname or "")
            options[protocol] = {"get_client": _client if is_inside else _client_of_public_hosts}
    with errors_of(address, "reached"):
        try:
            system, path = url_to_fs(address, **options)
        except ImportError as error:
            protocol = protocol_of(address.split("::")[-1])
            library = {"s3": "s3fs", "s3a": "s3fs", "hf": "huggingface_hub"}.get(protocol, "aiohttp")
            raise UnsupportedError(str(error), file=address, hint=f"pip install {library}") from error
    return system, path


def _is_inside(host: str) -> bool:
    """Return whether a host is one of a private network, or this computer."""
    try:
        places = {str(place[0]) for _, _, _, _, place in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return not all(map(_is_public, places))


def _is_public(number: str) -> bool:
    """Return whether an IP address is one of the public internet, not of this computer or a network around it."""
    place = ipaddress.ip_address(number.partition("%")[0])
    place = getattr(place, "ipv4_mapped", None) or place
    return place.is_global


def _require_public(number: str) -> None:
    """Refuse a redirect into a private network, where a server outside could read what only this computer may.

    Raises:
        T7BridgeError: the IP address is not public.
    """
    if not _is_public(number):
        raise T7BridgeError(f"it leads to a private address, {number}, without being one itself")


async def _client(**options: Any) -> Any:
    """Return an HTTP client, which keeps no more of an answer in memory than is ever asked for."""
    import aiohttp

    class Response(aiohttp.ClientResponse):
        async def read(self) -> bytes:
            if self._body is None:
                parts = []
                size = 0
                while part := await self.content.read(BLOCK_BYTES):
                    parts.append(part)
                    size += len(part)
                    if size > _MOST_BLOCKS * BLOCK_BYTES:
                        raise T7BridgeError("the server sends more than it was asked for")
                self._body = b"".join(parts)
            return self._body

    return aiohttp.ClientSession(**options, response_class=Response)


async def _client_of_public_hosts(**options: Any) -> Any:
    """Return an HTTP client that connects to public addresses only, wherever a server redirects it."""
    import aiohttp

    async def check_redirect(session: Any, context: Any, answer: Any) -> None:
        headers = answer.response.headers
        url = answer.url.join(type(answer.url)(headers.get("Location") or headers.get("URI") or ""))
        try:
            number = str(ipaddress.ip_address(url.host or ""))
        except ValueError:  # a name, which the resolver checks
            return
        _require_public(number)

    redirects = aiohttp.TraceConfig()
    redirects.on_request_redirect.append(check_redirect)
    resolver: Any = _PublicResolver(aiohttp.DefaultResolver())
    connector = aiohttp.TCPConnector(resolver=resolver)
    return await _client(**options, connector=connector, trace_configs=[redirects])


class _PublicResolver:
    """A resolver of names for aiohttp that refuses addresses of private networks.

    Args:
        resolver: aiohttp's own.
    """

    def __init__(self, resolver: Any) -> None:
        self._resolver = resolver

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> Any:
        """Return the addresses of a host."""
        places = await self._resolver.resolve(host, port, family)
        for place in places:
            _require_public(place["host"])
        return places

    async def close(self) -> None:
        """Close the resolver."""
        await self._resolver.close()


_MOST_UNANNOUNCED = 1 << 31
_MOST_RATIO = 100
"""Bytes of a file whose size is not known before it is there, or that grows to more than this multiple of its own."""


class _BoundedFile:
    """A file that is written, up to a number of bytes.

    Args:
        file: the file.
        most: bytes that it may get.
        name: of the source, for errors.
    """

    def __init__(self, file: IO[bytes], most: int, name: str) -> None:
        self._file = file
        self._left = most
        self._most = most
        self._name = name
        # fsspec writes into what has these.
        self.read, self.tell, self.close = file.read, file.tell, file.close

    def write(self, data: bytes) -> int:
        """Write bytes.

        Raises:
            T7BridgeError: they are too many.
        """
        self._left -= len(data)
        if self._left < 0:
            raise T7BridgeError(
                f"sends more than {self._most:,} bytes".replace(",", " "),
                file=self._name,
                hint="If that is right, download the file, and give its path.",
            )
        return self._file.write(data)


def copy_whole(system: Any, path: str, target: str | IO[bytes], name: str) -> None:
    """Copy a file of a file system, unless it turns out to be larger than it says.

    A server that does not say how large an answer is may send without end; an archive may have a member of a few bytes
    that become very many.

    Args:
        system: fsspec's.
        path: of the file in it.
        target: where to write: a path, or an open file.
        name: the address, for errors.

    Raises:
        T7BridgeError: it is larger.
    """
    if protocol_of(name) not in ("http", "https", *ARCHIVES):  # stores know the sizes of their files
        system.get_file(path, target)
        return
    if isinstance(target, str):
        with open(target, "wb") as file:
            copy_whole(system, path, file, name)
        return
    info = system.info(path)
    size = info.get("size")
    packed = info.get("compress_size")
    if size is None or (packed is not None and size > _MOST_RATIO * packed):
        free = shutil.disk_usage(tempfile.gettempdir()).free
        most = min(_MOST_UNANNOUNCED, free // 2)
    else:
        most = size
    system.get_file(path, _BoundedFile(target, most, name))


def stamp_of(info: dict[str, Any]) -> str:
    """Return what a file system says of the version of a file; empty if nothing."""
    return next((str(info[key]) for key in _STAMPS if info.get(key) is not None), "")


class Remote:
    """A file at an address, read by ranges through a bounded cache of blocks.

    A read elsewhere asks for the blocks that it needs; reads in order ask for ever more at once, as each request
    takes a round trip. Members of archives, and files of servers without ranges, are copied to a temporary file first.

    Attributes:
        name: the address.
        size: in bytes.

    Raises:
        MissingFileError: there is no such file.
        UnsupportedError: a library is not installed, or the address is that of a folder.
        T7BridgeError: it cannot be read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._system, self._path = connect(name)
        self._lock = allocate_lock()
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._runs: OrderedDict[int, int] = OrderedDict()
        """For each run of requests in order, the block that comes next, the count of blocks of the last."""
        self._file: Any = None
        with errors_of(name, "read", hint=_CHECK):
            info = self._system.info(self._path)
            if info.get("type") == "directory":
                hint = "Give the address of a file; t7bridge zoo takes folders."
                raise UnsupportedError("is a folder", file=name, hint=hint)
            self._state = info.get("size"), stamp_of(info)
            self.size: int = info.get("size") or 0
            if protocol_of(name) in ARCHIVES or info.get("size") is None or not info.get("partial", True):
                self._copy()
            else:
                self._file = self._system.open(self._path, "rb", cache_type="none")

    def _copy(self) -> None:
        """Copy the whole to a temporary file, and read that from now on."""
        copy = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        try:
            copy_whole(self._system, self._path, copy, self.name)
            self._check()
            size = copy.tell()
            stated_size = self._state[0]
            if stated_size is not None and size != stated_size:
                raise self._shorter(size, stated_size)
        except BaseException:
            copy.close()
            raise
        self._file = copy
        self.size = size
        self._system = None  # it is not asked any more
        self._blocks.clear()

    def _check(self) -> None:
        """Check that the file is still the one that was opened: its size, and its tag or time.

        Raises:
            T7BridgeError: it is not.
        """
        self._system.invalidate_cache()
        info = self._system.info(self._path)
        if (info.get("size"), stamp_of(info)) != self._state:
            raise T7BridgeError("has changed while it was read", file=self.name, hint="Run it again.")

    def _shorter(self, arrived: int, requested: int, offset: int | None = None) -> TruncatedError:
        """Return the error for fewer bytes than were requested."""
        return TruncatedError(
            "not all bytes arrived",
            file=self.name,
            offset=offset,
            expected=f"{requested} bytes",
            found=f"{arrived}",
            hint=_CHECK,
        )

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; return the number of bytes, fewer than its length only at the end.

        Raises:
            T7BridgeError: the file cannot be read.
        """
        length = min(len(buffer), self.size - offset)
        filled = 0
        with self._lock:
            while filled < length:
                missing = length - filled
                number, start = divmod(offset + filled, BLOCK_BYTES)
                blocks = -(-(start + missing) // BLOCK_BYTES)  # rounded up
                part = self._block(number, blocks)[start : start + missing]
                buffer[filled : filled + len(part)] = part
                filled += len(part)
        return filled

    def _block(self, number: int, needed: int) -> bytes:
        """Return a block, after asking for it and those that follow if it is not there.

        Args:
            number: of the block.
            needed: number of blocks that will be asked for, this one first.
        """
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        # Requests in order become twice as long each time; the block of a header that is there already may lie between.
        ahead = 2 * max(self._runs.pop(number, 0), self._runs.pop(number - 1, 0))
        count = min(max(needed, ahead), _MOST_BLOCKS)
        self._runs[number + count] = count
        if len(self._runs) > _MOST_RUNS:
            self._runs.popitem(last=False)
        data = self._fetch(number * BLOCK_BYTES, min((number + count) * BLOCK_BYTES, self.size))
        for at in range(count):
            self._blocks[number + at] = data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]
            self._blocks.move_to_end(number + at)
        while len(self._blocks) > _KEPT_BLOCKS:  # the first are those that were used the longest ago
            self._blocks.popitem(last=False)
        return self._blocks[number]

    def _fetch(self, start: int, end: int) -> bytes:
        """Read bytes from the server, and check that the file is still the same."""
        if self._file is None:
            raise T7BridgeError("has been closed", file=self.name, offset=start)
        with errors_of(self.name, "read", hint=_CHECK):
            try:
                data = self._read(start, end)
            except ValueError:  # a server that sends the whole file, whatever is asked for
                if self._system is None:
                    raise
                self._copy()
                data = self._read(start, end)
            if self._system is not None:
                self._check()
        if len(data) != end - start:
            raise self._shorter(len(data), end - start, start)
        return data

    def _read(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        return bytes(self._file.read(end - start))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._blocks.clear()
