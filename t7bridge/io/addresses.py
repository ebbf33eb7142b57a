"""Addresses of files: the URLs of all file systems that fsspec knows, and what answers there.

The only importer of fsspec.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import socket
import tempfile
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import urlsplit

from ..errors import MissingFileError, T7BridgeError, TruncatedError, UnsupportedError

ARCHIVES = ("zip", "tar", "libarchive")
"""File systems whose files are members of an archive, which cannot be read by ranges where they are compressed."""
MOST_BYTES = 1 << 23
"""Bytes that one request asks for at most."""
_FIRST_BYTES = 1 << 20
"""Bytes that the first request asks for: all of a small file."""
_IN_MEMORY = 1 << 24
"""Bytes of a copy that are kept in memory; a larger one goes to a temporary file."""
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified", "last_modified", "created", "CRC")
_TOO_MUCH = "the server sends more than it was asked for"
CHECK = "Check the address and the connection; or download the file, and give its path."


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
        cause: Any = error
        if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
            cause = error.__cause__  # over HTTP, a server that does not answer is a missing file for fsspec
        status = getattr(cause, "status", None)
        if kind is T7BridgeError and isinstance(error, FileNotFoundError) and (cause is error or status in (404, 410)):
            raise MissingFileError(f"cannot be {what}: no such file", file=address, hint=hint) from error
        reason = f"{status} {cause.message}" if status else " ".join(str(cause).split()) or type(cause).__name__
        raise kind(f"cannot be {what}: {reason.rstrip('.')}", file=address, hint=hint) from error


_LIBRARIES = {
    "http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "s3a": "s3fs", "hf": "huggingface_hub", "gs": "gcsfs",
    "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
}  # fmt: skip
"""The packages that fsspec needs for stores. Source: fsspec 2026.9 `registry.py`."""


def connect(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    Raises:
        UnsupportedError: fsspec, or the library for this kind of file system, is not installed.
        T7BridgeError: the URL is invalid.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        packages = " ".join(filter(None, ["fsspec", _library_of(address)]))
        raise UnsupportedError("fsspec is not installed", file=address, hint=f"pip install {packages}") from error
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
            library = _library_of(address)
            # fsspec's own message names that of other places.
            hint = f"pip install {library}" if library else ""
            raise UnsupportedError(str(error), file=address, hint=hint) from error
    return system, path


def _library_of(address: str) -> str:
    """Return the package that fsspec needs for the place of a URL; empty for those that need none, and unknown ones."""
    return _LIBRARIES.get(protocol_of(address.split("::")[-1]), "")


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
                while part := await self.content.readany():
                    parts.append(part)
                    size += len(part)
                    if size > MOST_BYTES:
                        raise T7BridgeError(_TOO_MUCH)
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
    protocol = protocol_of(name)
    if protocol not in ("http", "https", *ARCHIVES):  # stores know the sizes of their files
        system.get_file(path, target)
        return
    if isinstance(target, str):
        with open(target, "wb") as file:
            copy_whole(system, path, file, name)
        return
    if protocol not in ARCHIVES:
        _Web(system, path, name).write_to(target)
        return
    info = system.info(path)
    size = info.get("size")
    packed = info.get("compress_size")
    if size is None or (packed is not None and size > _MOST_RATIO * packed):
        size = _most_unannounced()
    system.get_file(path, _BoundedFile(target, size, name))


def head_of(address: str, count: int) -> bytes:
    """Return the first bytes of a file, at most `count`; from a web server by one request."""
    system, path = connect(address)
    if protocol_of(address) in ("http", "https"):
        return _Web(system, path, address).head(count)
    with system.open(path, "rb", block_size=1 << 16) as file:
        return bytes(file.read(count))


def stamp_of(info: dict[str, Any]) -> str:
    """Return what a file system says of the version of a file; empty if nothing."""
    return next((str(info[key]) for key in _STAMPS if info.get(key) is not None), "")


class NoRangesError(Exception):
    """A server sends the whole file, whatever part of it is asked for."""


def changed(name: str) -> T7BridgeError:
    """Return the error for a file that is not the one any more that was opened."""
    return T7BridgeError("has changed while it was read", file=name, hint="Run it again.")


def not_all(name: str, arrived: int, requested: int, offset: int | None = None) -> TruncatedError:
    """Return the error for fewer bytes than were requested."""
    return TruncatedError(
        "not all bytes arrived",
        file=name,
        offset=offset,
        expected=f"{requested} bytes",
        found=f"{arrived}",
        hint=CHECK,
    )


Copy = tempfile.SpooledTemporaryFile[bytes]


def _new_copy() -> Copy:
    return tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # closed by who reads it


class Server:
    """What answers at the address of a file.

    Attributes:
        size: of the file, in bytes; `None` before `begin`, and if the server does not state it.
        vouches: whether each answer is of the file that was opened, or an error, so that nothing has to be checked at
            the end.
    """

    size: int | None = None
    vouches = False

    def begin(self) -> bytes | Copy:
        """Return the first bytes of the file, or a copy of the whole where it cannot be read by ranges.

        Raises:
            FileNotFoundError: there is none.
            UnsupportedError: it is a folder.
        """
        raise NotImplementedError

    def fetch(self, start: int, end: int) -> bytes:
        """Return bytes of the file; several threads may ask at once.

        Raises:
            NoRangesError: the server sends the whole file only.
            T7BridgeError: the file is not the one any more that was opened, or not all bytes arrived.
        """
        raise NotImplementedError

    def copy(self) -> Copy:
        """Return a copy of the whole file.

        Raises:
            T7BridgeError: as in `fetch`; or the file is larger than it may be.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Check that the file is still the one that was opened: its size, and its tag or time.

        Raises:
            T7BridgeError: it is not.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release what is open."""


def server_of(name: str) -> Server:
    """Return what answers at an address.

    Raises:
        UnsupportedError: a library is not installed.
        T7BridgeError: the address is invalid.
    """
    system, path = connect(name)
    if protocol_of(name) in ("http", "https"):
        return _Web(system, path, name)
    return _Store(system, path, name)


class _Web(Server):
    """A file of a web server.

    Each answer states what it is an answer about: a tag or time of the file, and its size. One that states another file
    is an error, so that parts of two files are never mixed. What the last answer was about is checked at the end: the
    file may have been overwritten while it was sent.

    Args:
        system: fsspec's, whose connections are used.
        path: the URL.
        name: the address, for errors.
    """

    def __init__(self, system: Any, path: str, name: str) -> None:
        self._system = system
        self._url = system.encode_url(path)
        self._path = path
        self._name = name
        self._stamp: str | None = None
        """Tag or time of the file, empty if the server does not state it; `None` before the first answer."""

    def begin(self) -> bytes | Copy:
        return self._run(self._begin)  # type: ignore[no-any-return]

    def fetch(self, start: int, end: int) -> bytes:
        return self._run(self._fetch, start, end)  # type: ignore[no-any-return]

    def copy(self) -> Copy:
        return self._run(self._copy)  # type: ignore[no-any-return]

    def check(self) -> None:
        self._run(self._check)

    def head(self, count: int) -> bytes:
        """Return the first bytes of the file, at most `count`."""
        return self._run(self._head, count)  # type: ignore[no-any-return]

    def write_to(self, target: IO[bytes]) -> None:
        """Write the whole file to an open one.

        Raises:
            T7BridgeError: it is larger than it may be.
        """
        self._run(self._write_to, target)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a coroutine, which fsspec's own thread runs."""
        from fsspec.asyn import sync

        return sync(self._system.loop, function, *arguments)

    async def _answer(self, start: int | None = None, end: int | None = None, method: str = "get") -> Any:
        """Return the context of an answer: to a request for a range, or for the whole.

        Raises:
            FileNotFoundError: there is no such file.
        """
        options = dict(self._system.kwargs)
        # A compressed answer would have neither the size of the file nor its ranges.
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        if end is not None:
            headers["Range"] = f"bytes={start}-{end - 1}"
        session = await self._system.set_session()
        answer = await session.request(method, self._url, headers=headers, allow_redirects=True, **options)
        if answer.status in (404, 410):
            answer.release()
            raise FileNotFoundError(self._path)
        return answer

    async def _begin(self) -> bytes | Copy:
        async with await self._answer(0, _FIRST_BYTES) as answer:
            if answer.status == 200:
                return await self._copied(answer)
            if answer.status != 416:  # no part of an empty file can be asked for
                answer.raise_for_status()
                data = await _body(answer, _FIRST_BYTES)
                first, size = _range_of(answer)
                if first == 0 and size is not None:
                    if len(data) != min(size, _FIRST_BYTES):
                        raise not_all(self._name, len(data), min(size, _FIRST_BYTES), 0)
                    self.size = size
                    self._stamp = stamp_of(answer.headers)
                    return data
        return await self._copy()

    async def _head(self, count: int) -> bytes:
        async with await self._answer(0, count) as answer:
            if answer.status == 416:  # no part of an empty file can be asked for
                return b""
            answer.raise_for_status()
            data = b""
            # Where the server sends the whole file nevertheless, the rest of it is not read.
            async for part in answer.content.iter_chunked(count):
                data += part
                if len(data) >= count:
                    break
            return data[:count]

    async def _fetch(self, start: int, end: int) -> bytes:
        async with await self._answer(start, end) as answer:
            if answer.status in (412, 416):
                raise changed(self._name)
            answer.raise_for_status()
            if answer.status == 200:
                self._compare(_announced(answer), answer)
                raise NoRangesError
            first, size = _range_of(answer)
            self._compare(size, answer)
            if first not in (start, None):
                raise T7BridgeError("the server sends another part than it was asked for", file=self._name)
            data = await _body(answer, end - start)
        if len(data) != end - start:
            raise not_all(self._name, len(data), end - start, start)
        return data

    async def _copy(self) -> Copy:
        async with await self._answer() as answer:
            answer.raise_for_status()
            return await self._copied(answer)

    async def _copied(self, answer: Any) -> Copy:
        """Return a copy of an answer that is the whole file, the same file as before if there was an answer before."""
        size = _announced(answer)
        if self._stamp is not None:
            self._compare(size, answer)
        self.size = size
        self._stamp = stamp_of(answer.headers)
        copy = _new_copy()
        try:
            await _stream(answer, copy, self._name)
        except BaseException:
            copy.close()
            raise
        return copy

    async def _write_to(self, target: IO[bytes]) -> None:
        async with await self._answer() as answer:
            answer.raise_for_status()
            await _stream(answer, target, self._name)

    def _compare(self, size: int | None, answer: Any) -> None:
        """Refuse an answer about another file than that of the first.

        Raises:
            T7BridgeError: it is.
        """
        other_size = None not in (size, self.size) and size != self.size
        if other_size or stamp_of(answer.headers) != self._stamp:
            raise changed(self._name)

    async def _check(self) -> None:
        try:
            async with await self._answer(method="head") as answer:
                answer.raise_for_status()
                self._compare(_announced(answer), answer)
                return
        except Exception:
            # Some servers answer no HEAD, or with other headers. What they say when they send the file counts.
            pass
        async with await self._answer(0, 1) as answer:
            if answer.status == 416 and not self.size:
                return
            answer.raise_for_status()
            size = _announced(answer) if answer.status == 200 else _range_of(answer)[1]
            self._compare(size, answer)
            answer.close()  # a server without ranges would send the whole


def _announced(answer: Any) -> int | None:
    """Return the size of the file that a web server sends whole; `None` if it does not state it."""
    if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
        return None
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _range_of(answer: Any) -> tuple[int | None, int | None]:
    """Return where a part of a file begins that a web server sends, and the size of the file; `None` if not stated."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
    if match is None:
        return None, None
    return int(match[1]), None if match[2] == "*" else int(match[2])


async def _body(answer: Any, most: int) -> bytes:
    """Return the bytes of an answer.

    Raises:
        T7BridgeError: they are more than were asked for.
    """
    body = bytearray()
    while part := await answer.content.readany():
        if len(body) + len(part) > most:
            raise T7BridgeError(_TOO_MUCH)
        body += part
    return bytes(body)


async def _stream(answer: Any, target: Any, name: str) -> None:
    """Write the bytes of an answer that is a whole file to another.

    Raises:
        T7BridgeError: they are more than it announced, or than may be if it did not.
    """
    size = _announced(answer)
    bounded = _BoundedFile(target, _most_unannounced() if size is None else size, name)
    written = 0
    while part := await answer.content.readany():
        written += bounded.write(part)
    if size is not None and written != size:
        raise not_all(name, written, size)


def _most_unannounced() -> int:
    """Return how many bytes a file may have whose size is not known before it is there."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return min(_MOST_UNANNOUNCED, free // 2)


class _Store(Server):
    """A file of any other file system of fsspec. Members of archives are copied.

    Args:
        system: fsspec's.
        path: of the file in it.
        name: the address, for errors.
    """

    def __init__(self, system: Any, path: str, name: str) -> None:
        self._system = system
        self._path = path
        self._name = name
        self._file: Any = None
        self._lock = allocate_lock()
        self._state: tuple[int | None, str] = (None, "")
        # Its files are opened by their tag, which each of their requests repeats (`If-Match`).
        self.vouches = protocol_of(name) in ("s3", "s3a")

    def begin(self) -> bytes | Copy:
        is_member = protocol_of(self._name) in ARCHIVES
        self._system.invalidate_cache()
        info = None
        if not is_member:
            try:
                self._file = self._system.open(self._path, "rb", cache_type="none")
            except Exception:
                info = self._system.info(self._path)  # an error that says more, or a folder
                if info.get("type") != "directory":
                    raise
        if info is None:
            # Where opening asked for it, it is not asked for again.
            info = getattr(self._file, "details", None) or self._system.info(self._path)
        if info.get("type") == "directory":
            hint = "Give the address of a file; t7bridge zoo takes folders."
            raise UnsupportedError("is a folder", file=self._name, hint=hint)
        self.size = info.get("size")
        self._state = self.size, stamp_of(info)
        if is_member or self.size is None:
            return self.copy()
        return self.fetch(0, min(self.size, _FIRST_BYTES))

    def fetch(self, start: int, end: int) -> bytes:
        if start == end:
            return b""
        if getattr(self._system, "async_impl", False) and hasattr(self._file, "_fetch_range"):
            data = self._file._fetch_range(start, end)  # needs no position, so that two may be under way
        else:
            with self._lock:
                self._file.seek(start)
                data = self._file.read(end - start)
        if len(data) != end - start:
            raise not_all(self._name, len(data), end - start, start)
        return bytes(data)

    def copy(self) -> Copy:
        copy = _new_copy()
        try:
            copy_whole(self._system, self._path, copy, self._name)
            if self.size is not None and copy.tell() != self.size:
                raise not_all(self._name, copy.tell(), self.size)
        except BaseException:
            copy.close()
            raise
        return copy

    def check(self) -> None:
        self._system.invalidate_cache()
        info = self._system.info(self._path)
        if (info.get("size"), stamp_of(info)) != self._state:
            raise changed(self._name)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
