"""Addresses of files, the URLs of all file systems that fsspec knows, and the servers that answer there.

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
from contextlib import contextmanager, nullcontext
from typing import IO, Any
from urllib.parse import urlsplit

from ..errors import MissingFileError, T7BridgeError, TruncatedError, UnsupportedError

ARCHIVES = ("zip", "tar", "libarchive")
"""File systems whose files are members of an archive, which cannot be read by ranges where they are compressed."""
MOST_BYTES = 1 << 23
"""Most bytes that one request asks for, and so the most of an answer that is kept in memory."""
_FIRST_BYTES = 1 << 20
"""Bytes that the first request asks for: all of a small file."""
_COPY_BYTES_IN_MEMORY = 1 << 24
"""Bytes of a copy that are kept in memory; a larger one goes to a temporary file."""
_STAMP_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified", "last_modified", "created", "CRC")
"""Keys under which file systems of fsspec, and headers of web servers, have a tag or time of a file; tags first."""
_TOO_MUCH = "the server sends more than it was asked for"
ADDRESS_HINT = "Check the address and the connection; or download the file, and give its path."


def protocol_of(address: str) -> str:
    """Return `s3` for `s3://bucket/key`, `zip` for `zip://member::s3://bucket/key`; an empty text for a path."""
    # One letter would be a drive of Windows. `zip::s3://bucket/key` names no member.
    match = re.match(r"([\w+.-]{2,}):[:/]", address)
    return match[1] if match else ""


@contextmanager
def errors_of(address: str, what: str, kind: type[T7BridgeError] = T7BridgeError, hint: str = "") -> Iterator[None]:
    """Raise any error in the block as one of the package: each file system of fsspec has its own.

    A missing file is a `MissingFileError` only where no other class is asked for.

    Args:
        address: named by the error.
        what: participle of what is done with it: `read`.
        kind: class of the error.
        hint: what to do next.

    Raises:
        T7BridgeError: an error occurred, with its reason.
    """
    try:
        yield
    except T7BridgeError:
        raise
    except Exception as error:
        is_missing = isinstance(error, FileNotFoundError)
        cause: Any = error
        if is_missing and error.__cause__ is not None:
            # Over HTTP, fsspec calls every answer that is no file a missing one; the cause tells what it was.
            cause = error.__cause__
            is_missing = getattr(cause, "status", None) in (404, 410)  # Not Found, Gone
        if is_missing and kind is T7BridgeError:
            raise MissingFileError(f"cannot be {what}: no such file", file=address, hint=hint) from error
        raise kind(f"cannot be {what}: {_reason(cause).rstrip('.')}", file=address, hint=hint) from error


def _reason(error: Any) -> str:
    """Return what an error of a file system says, in one line: of an HTTP client, the status and its text."""
    status = getattr(error, "status", None)
    if status:
        return f"{status} {error.message}"
    return " ".join(str(error).split()) or type(error).__name__


_LIBRARIES = {
    "http": "aiohttp", "https": "aiohttp", "s3": "s3fs", "s3a": "s3fs", "hf": "huggingface_hub", "gs": "gcsfs",
    "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
}  # fmt: skip
"""The packages that fsspec needs for stores. Source: fsspec 2026.9 `registry.py`."""


def connect(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it.

    A server outside must not redirect into the network that this computer is in: only an address that is itself of a
    private network, as the user gave it, is connected to there.

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
            is_private = _is_private(urlsplit(part).hostname or "")
            options[protocol] = {"get_client": _client if is_private else _client_of_public_hosts}
    with errors_of(address, "reached"):
        try:
            system, path = url_to_fs(address, **options)
        except ImportError as error:
            library = _library_of(address)
            # For other places, fsspec's own message names the library.
            hint = f"pip install {library}" if library else ""
            raise UnsupportedError(str(error), file=address, hint=hint) from error
    return system, path


def _library_of(address: str) -> str:
    """Return the package that fsspec needs for the place of a URL; empty for those that need none, and unknown ones."""
    return _LIBRARIES.get(protocol_of(address.split("::")[-1]), "")


def _is_private(host: str) -> bool:
    """Return whether a host is this computer, or in a network around it; false for a name that nobody knows."""
    try:
        # A socket address begins with the IP address.
        addresses = {str(address) for _, _, _, _, (address, *_) in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return not all(map(_is_public, addresses))


def _is_public(ip_address: str) -> bool:
    """Return whether an IP address is one of the public internet, not of this computer or a network around it."""
    without_zone, _, _ = ip_address.partition("%")  # `fe80::1%eth0`
    address = ipaddress.ip_address(without_zone)
    # `::ffff:127.0.0.1` is connected to as IPv4.
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_global


def _require_public(ip_address: str) -> None:
    """Refuse a redirect into a private network, where a server outside could read what only this computer may.

    Raises:
        T7BridgeError: the IP address is not public.
    """
    if not _is_public(ip_address):
        raise T7BridgeError(f"it leads to a private address, {ip_address}, without being one itself")


async def _client(**options: Any) -> Any:
    """Return an HTTP client whose answers are refused where they are longer than anything that is asked for.

    Args:
        options: of `aiohttp.ClientSession`.
    """
    import aiohttp

    class Response(aiohttp.ClientResponse):
        async def read(self) -> bytes:
            """Return the whole answer."""
            # As aiohttp's, which would keep an endless answer in memory.
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
    """Return an HTTP client that connects to public addresses only, wherever a server redirects it.

    Names are checked when they are resolved. An IP address is never resolved: a redirect to one is checked before it is
    followed.
    """
    import aiohttp

    async def check_redirect(session: Any, context: Any, answer: Any) -> None:
        """Refuse a redirect to a private IP address; aiohttp calls it with each redirect, before it follows it."""
        headers = answer.response.headers
        location = headers.get("Location") or headers.get("URI") or ""  # as aiohttp looks for it
        url = answer.url.join(type(answer.url)(location))
        try:
            ip_address = str(ipaddress.ip_address(url.host or ""))
        except ValueError:  # a name
            return
        _require_public(ip_address)

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
        """Return the addresses of a host, as aiohttp's resolver does.

        Raises:
            T7BridgeError: one is not public.
        """
        addresses = await self._resolver.resolve(host, port, family)
        for address in addresses:
            _require_public(address["host"])
        return addresses

    async def close(self) -> None:
        """Close the resolver."""
        await self._resolver.close()


_MOST_UNANNOUNCED = 1 << 31
"""Most bytes of a file whose size is not known before it is there."""
_MOST_RATIO = 100
"""Multiple of its compressed size from which on the size that an archive states of a member is not believed."""


class _BoundedFile:
    """A file to write into that refuses more than a number of bytes.

    Args:
        file: the file.
        most: bytes that it may get.
        name: the address of what is copied, for errors.
    """

    def __init__(self, file: IO[bytes], most: int, name: str) -> None:
        self._file = file
        self._bytes_left = most
        self._most = most
        self._name = name
        # fsspec takes what has these for an open file.
        self.read, self.tell, self.close = file.read, file.tell, file.close

    def write(self, data: bytes) -> int:
        """Write bytes.

        Raises:
            T7BridgeError: the file gets more bytes than it may.
        """
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            raise T7BridgeError(
                f"sends more than {self._most:,} bytes".replace(",", " "),
                file=self._name,
                hint="If that is right, download the file, and give its path.",
            )
        return self._file.write(data)


def copy_whole(system: Any, path: str, target: str | IO[bytes], name: str) -> None:
    """Copy a file of a file system whole, unless it turns out to be larger than it says.

    A server that does not say how large an answer is may send without end; an archive may have a member of a few bytes
    that become very many.

    Args:
        system: fsspec's.
        path: of the file in it.
        target: where to write: a path, or an open file.
        name: the address, for errors.

    Raises:
        T7BridgeError: the file is larger than it says, or than it may be.
    """
    protocol = protocol_of(name)
    if protocol not in ("http", "https", *ARCHIVES):  # stores know the sizes of their files, and send no more
        system.get_file(path, target)
        return
    with open(target, "wb") if isinstance(target, str) else nullcontext(target) as file:
        if protocol in ARCHIVES:
            system.get_file(path, _BoundedFile(file, _most_of_member(system, path), name))
        else:
            _Web(system, path, name).write_to(file)


def _most_of_member(system: Any, path: str) -> int:
    """Return how many bytes a member of an archive may have: its size, if that is stated and believable."""
    info = system.info(path)
    size: int | None = info.get("size")
    packed = info.get("compress_size")  # of a zip archive
    if size is None or (packed is not None and size > _MOST_RATIO * packed):
        return _most_unannounced()
    return size


def head_of(address: str, count: int) -> bytes:
    """Return the first bytes of a file, at most `count`; from a web server by one request."""
    system, path = connect(address)
    if protocol_of(address) in ("http", "https"):
        return _Web(system, path, address).head(count)
    with system.open(path, "rb", block_size=1 << 16) as file:
        return bytes(file.read(count))


def stamp_of(info: dict[str, Any]) -> str:
    """Return the tag or time by which a file system, or a web server, tells versions of a file apart; empty if none.

    Args:
        info: what fsspec says about the file, or the headers of an answer.
    """
    return next((str(info[key]) for key in _STAMP_KEYS if info.get(key) is not None), "")


class NoRangesError(Exception):
    """A server sends the whole file, whatever part of it is asked for."""


def changed_error(name: str) -> T7BridgeError:
    """Return the error for a file that is not the one any more that was opened."""
    return T7BridgeError("has changed while it was read", file=name, hint="Run it again.")


def missing_bytes_error(name: str, arrived: int, requested: int, offset: int | None = None) -> TruncatedError:
    """Return the error for fewer bytes than were requested.

    Args:
        name: the address.
        arrived: count of bytes that arrived.
        requested: count of bytes that were asked for.
        offset: of the first, 0-based; `None` for a whole file.
    """
    return TruncatedError(
        "not all bytes arrived",
        file=name,
        offset=offset,
        expected=f"{requested} bytes",
        found=f"{arrived}",
        hint=ADDRESS_HINT,
    )


Copy = tempfile.SpooledTemporaryFile[bytes]
"""A copy of a whole file."""


def _new_copy() -> Copy:
    """Return an empty copy; who reads it closes it."""
    return tempfile.SpooledTemporaryFile(max_size=_COPY_BYTES_IN_MEMORY)


class Server:
    """What answers at the address of a file: a web server, or another file system of fsspec.

    Attributes:
        size: of the file, in bytes; `None` before `begin`, and if the server does not state it.
        refuses_other_versions: whether each request names the version of the file that was opened, and fails for
            another one, so that nothing has to be checked at the end.
    """

    size: int | None = None
    refuses_other_versions = False

    def begin(self) -> bytes | Copy:
        """Return the first bytes of the file, or a copy of the whole where it cannot be read by ranges.

        Raises:
            FileNotFoundError: there is none.
            UnsupportedError: it is a folder.
        """
        raise NotImplementedError

    def fetch(self, start: int, end: int) -> bytes:
        """Return bytes of the file; several threads may ask at once.

        Args:
            start: of the first byte, 0-based.
            end: behind the last one.

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
            T7BridgeError: the file has changed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release what is open."""


def server_of(name: str) -> Server:
    """Return the server at an address, to which nothing has been sent yet.

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
        """Return the first bytes of the file, or a copy of the whole if the server sends no ranges."""
        return self._run(self._begin)  # type: ignore[no-any-return]

    def fetch(self, start: int, end: int) -> bytes:
        """Return the bytes of the file from `start` on, 0-based, up to but without `end`."""
        return self._run(self._fetch, start, end)  # type: ignore[no-any-return]

    def copy(self) -> Copy:
        """Return a copy of the whole file."""
        return self._run(self._copy)  # type: ignore[no-any-return]

    def check(self) -> None:
        """Check that the file is still the one that was opened."""
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

    # aiohttp has coroutines only: each method has one of the same name, with an underscore.

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a coroutine, which the thread runs that fsspec has for its connections."""
        from fsspec.asyn import sync

        return sync(self._system.loop, function, *arguments)

    async def _answer(self, start: int | None = None, end: int | None = None, method: str = "get") -> Any:
        """Return an answer, a context manager that ends it: to a request for a range, or for the whole.

        Args:
            start: of the first byte, 0-based; given with `end` only.
            end: behind the last one; `None` for the whole file.
            method: of HTTP.

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
        if answer.status in (404, 410):  # Not Found, Gone
            answer.release()
            raise FileNotFoundError(self._path)
        return answer

    async def _begin(self) -> bytes | Copy:
        """Return the first bytes, if the server says that it sends a part, and how large the file is; else a copy.

        Sets the size of the file, and the tag or time by which later answers are recognized as of the same version.
        """
        async with await self._answer(start=0, end=_FIRST_BYTES) as answer:
            if answer.status == 200:  # OK: the whole, as the server has no ranges
                return await self._copied(answer)
            if answer.status != 416:  # Range Not Satisfiable: the file is empty, and is copied below
                answer.raise_for_status()
                data = await _body(answer, _FIRST_BYTES)
                start, size = _range_of(answer)
                if start == 0 and size is not None:
                    expected = min(size, _FIRST_BYTES)
                    if len(data) != expected:
                        raise missing_bytes_error(self._name, len(data), expected, offset=0)
                    self.size = size
                    self._stamp = stamp_of(answer.headers)
                    return data
        return await self._copy()

    async def _head(self, count: int) -> bytes:
        """Return the first bytes, at most `count`, without anything else."""
        async with await self._answer(start=0, end=count) as answer:
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
        """Return the bytes of a range of the file; an answer about another version is an error.

        Args:
            start: of the first byte, 0-based.
            end: behind the last one.

        Raises:
            NoRangesError: the server sends the whole file only.
            T7BridgeError: the file has changed, or not these bytes arrived.
        """
        async with await self._answer(start, end) as answer:
            # Precondition Failed; Range Not Satisfiable: the file is shorter than it was.
            if answer.status in (412, 416):
                raise changed_error(self._name)
            answer.raise_for_status()
            if answer.status == 200:  # OK: it sends the whole
                self._require_same_version(_announced_size(answer), answer)
                raise NoRangesError
            start_of_answer, size = _range_of(answer)
            self._require_same_version(size, answer)
            if start_of_answer not in (start, None):  # `None` if it is not stated
                raise T7BridgeError("the server sends another part than it was asked for", file=self._name)
            data = await _body(answer, end - start)
        if len(data) != end - start:
            raise missing_bytes_error(self._name, len(data), end - start, start)
        return data

    async def _copy(self) -> Copy:
        """Return a copy of the whole file."""
        async with await self._answer() as answer:
            answer.raise_for_status()
            return await self._copied(answer)

    async def _copied(self, answer: Any) -> Copy:
        """Return a copy of an answer that is the whole file, and set its size, and its tag or time.

        Args:
            answer: of the web server.

        Raises:
            T7BridgeError: it is of another version than an answer before; or the file is larger than it may be.
        """
        size = _announced_size(answer)
        if self._stamp is not None:
            self._require_same_version(size, answer)
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
        """Write the whole file to an open one."""
        async with await self._answer() as answer:
            answer.raise_for_status()
            await _stream(answer, target, self._name)

    def _require_same_version(self, size: int | None, answer: Any) -> None:
        """Refuse an answer about another version of the file than that of the first answer.

        Args:
            size: of the file, as this answer states it; `None` if it does not.
            answer: with the tag or time in its headers.

        Raises:
            T7BridgeError: the file has changed.
        """
        are_both_stated = size is not None and self.size is not None
        has_other_size = are_both_stated and size != self.size
        if has_other_size or stamp_of(answer.headers) != self._stamp:
            raise changed_error(self._name)

    async def _check(self) -> None:
        """Check that the file is still the one that was opened, by a request for its headers or its first byte."""
        try:
            async with await self._answer(method="head") as answer:
                answer.raise_for_status()
                self._require_same_version(_announced_size(answer), answer)
                return
        except Exception:
            # Some servers do not answer HEAD, or with other headers: no error of it counts, not even that of a change.
            # What they say when they send the file does: ask for its first byte.
            pass
        async with await self._answer(start=0, end=1) as answer:
            if answer.status == 416 and not self.size:  # Range Not Satisfiable: it is still empty
                return
            answer.raise_for_status()
            if answer.status == 200:  # OK: it sends the whole
                size = _announced_size(answer)
            else:
                _, size = _range_of(answer)
            self._require_same_version(size, answer)
            answer.close()  # a server without ranges would send the whole


def _announced_size(answer: Any) -> int | None:
    """Return the size of the file that a web server sends whole; `None` if it does not state it."""
    # The length of a compressed answer is not that of the file.
    if answer.headers.get("Content-Encoding", "identity") not in ("identity", ""):
        return None
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _range_of(answer: Any) -> tuple[int | None, int | None]:
    """Return the 0-based start of the part of a file that a web server sends, and the size of the file, in bytes.

    Either is `None` if it is not stated.
    """
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
    if match is None:
        return None, None
    return int(match[1]), None if match[2] == "*" else int(match[2])


async def _body(answer: Any, most: int) -> bytes:
    """Return the bytes of an answer to a request for at most `most`.

    Raises:
        T7BridgeError: there are more bytes.
    """
    body = bytearray()
    while part := await answer.content.readany():
        if len(body) + len(part) > most:
            raise T7BridgeError(_TOO_MUCH)
        body += part
    return bytes(body)


async def _stream(answer: Any, target: Any, name: str) -> None:
    """Write the bytes of an answer that is a whole file into a file.

    Args:
        answer: of a web server.
        target: an open file.
        name: the address, for errors.

    Raises:
        T7BridgeError: there are more bytes than it announced, or, if it did not, more than there may be.
        TruncatedError: there are fewer bytes than it announced.
    """
    size = _announced_size(answer)
    bounded = _BoundedFile(target, _most_unannounced() if size is None else size, name)
    written = 0
    while part := await answer.content.readany():
        written += bounded.write(part)
    if size is not None and written != size:
        raise missing_bytes_error(name, written, size)


def _most_unannounced() -> int:
    """Return the most bytes of a file whose size is not known before it is there: at most half of the free disk."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    return min(_MOST_UNANNOUNCED, free // 2)


class _Store(Server):
    """A file of any other file system of fsspec. Members of archives are copied.

    Args:
        system: fsspec's.
        path: of the file in it.
        name: the address, with its protocol, for errors.
    """

    def __init__(self, system: Any, path: str, name: str) -> None:
        self._system = system
        self._path = path
        self._name = name
        self._file: Any = None
        """The open file of fsspec; `None` for a member of an archive."""
        self._lock = allocate_lock()
        """Held while the position of the file is used."""
        self._version: tuple[int | None, str] = (None, "")
        """Size, and tag or time, of the file that was opened; set by `begin`."""
        # Files of S3 are opened by their tag, which each of their requests repeats (`If-Match`).
        self.refuses_other_versions = protocol_of(name) in ("s3", "s3a")

    def begin(self) -> bytes | Copy:
        """Open the file, and return its first bytes; a copy of a member of an archive, or of a file of unknown size."""
        is_member = protocol_of(self._name) in ARCHIVES
        self._system.invalidate_cache()  # fsspec's lists of files, of an earlier call
        info = self._system.info(self._path) if is_member else self._open()
        if info.get("type") == "directory":
            hint = "Give the address of a file; t7bridge zoo takes folders."
            raise UnsupportedError("is a folder", file=self._name, hint=hint)
        self.size = info.get("size")
        self._version = self.size, stamp_of(info)
        if is_member or self.size is None:
            return self.copy()
        return self.fetch(0, min(self.size, _FIRST_BYTES))

    def _open(self) -> Any:
        """Open the file, and return its state: size, type and time by name. A folder has one, and is not opened."""
        try:
            self._file = self._system.open(self._path, "rb", cache_type="none")
        except Exception:
            # Why it cannot be opened: asking for its state raises an error that says more, or it is a folder.
            info = self._system.info(self._path)
            if info.get("type") != "directory":
                raise
            return info
        # A file that is open has the state that opening asked for.
        return getattr(self._file, "details", None) or self._system.info(self._path)

    def fetch(self, start: int, end: int) -> bytes:
        """Return the bytes of a range of the open file.

        Args:
            start: of the first byte, 0-based.
            end: behind the last one.

        Raises:
            TruncatedError: not all bytes arrived.
        """
        if start == end:
            return b""
        if getattr(self._system, "async_impl", False) and hasattr(self._file, "_fetch_range"):
            # What `read` of such a file calls: it needs no position, so that two requests may be under way.
            data = self._file._fetch_range(start, end)
        else:
            with self._lock:
                self._file.seek(start)
                data = self._file.read(end - start)
        if len(data) != end - start:
            raise missing_bytes_error(self._name, len(data), end - start, start)
        return bytes(data)

    def copy(self) -> Copy:
        """Return a copy of the whole file; another number of bytes than its size is an error."""
        copy = _new_copy()
        try:
            copy_whole(self._system, self._path, copy, self._name)
            if self.size is not None and copy.tell() != self.size:
                raise missing_bytes_error(self._name, copy.tell(), self.size)
        except BaseException:
            copy.close()
            raise
        return copy

    def check(self) -> None:
        """Check that size, and tag or time, are still those of the file that was opened."""
        self._system.invalidate_cache()  # fsspec's lists of files, which would have the old state
        info = self._system.info(self._path)
        if (info.get("size"), stamp_of(info)) != self._version:
            raise changed_error(self._name)

    def close(self) -> None:
        """Close the open file, if there is one."""
        if self._file is not None:
            self._file.close()
