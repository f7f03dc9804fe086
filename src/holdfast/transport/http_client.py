"""A node calls another one, or a command its own daemon: HTTP/1.1 over a Unix socket, TCP or TLS.

One connection, kept open between calls, one call at a time; threads take turns, and a stream holds
the connection until it ends. A call returns an `HttpAnswer` with a good status, or raises an error
that says what its caller can do:

- `Unreachable`: no answer came. A caller that only reads, or may repeat the call, tries again
  later.
- `OutcomeUnknown`: no answer came to a call that must not be repeated without its ids.
- `BadAnswer`: an answer came that no node sends.
- else the error that the other side answered with.

Nothing that comes back is trusted: it is cut at a size, before and after unpacking, and at a time,
however slowly it comes (see `deadline_socket`).
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import BinaryIO, Final, NamedTuple, cast

from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    HoldfastError,
    OutcomeUnknown,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.limits import BODY_BYTES_MAX, KIB, LINK_CONNECT_MS_MAX, LINK_READ_MS_MAX
from holdfast.transport.compression import unpack, unpack_part, unpack_pieces, unpacker
from holdfast.transport.deadline_socket import Address, DeadlineSocket
from holdfast.transport.remote_errors import HttpAnswer, clean, error_of

_ERROR_BYTES_MAX: Final = 64 * KIB
_PIECE_BYTES: Final = 64 * KIB
_NOT_TWICE: Final = frozenset({("POST", "/v1/facts/append")})
"""Calls that change something and may be sent without ids: repeating them may do it twice."""
_CUTS: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The other side closed the connection, as it does after a long idle time."""
_NO_HEADERS: Final[Mapping[str, str]] = {}


class AnswerCut(IncompleteRead):
    """The beginning of an answer, unpacked; then the connection broke. It is the cause of the
    Unreachable that a call raises.
    """

    def __init__(self, status: int, headers: Mapping[str, str], part: bytes) -> None:
        super().__init__(part)
        self.status, self.headers = status, headers


class Content(NamedTuple):
    """A body that is read from its source, from the beginning each time it is sent."""

    source: BinaryIO
    size: int

    def pieces(self) -> Iterator[bytes]:
        self.source.seek(0)
        left = self.size
        while left:
            piece = self.source.read(min(left, _PIECE_BYTES))
            if not piece:
                raise BadInput("the content ended before its size")
            left -= len(piece)
            yield piece


class Client:
    """Calls one node."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        connect_ms: int = LINK_CONNECT_MS_MAX,
        read_ms: int = LINK_READ_MS_MAX,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Without a `context` an authority must vouch for the certificate, as in a browser."""
        self.address = Address.parse(address)
        self._connect_ms = connect_ms
        self._read_ms = read_ms
        self._context = context
        self._headers = {} if token is None else {"Authorization": bearer(token)}
        if token is not None and not self.address.is_secret:
            raise BadInput(
                "a token must not travel unencrypted over a network", hint="use an https address"
            )
        self._turn = threading.Lock()
        self._line: DeadlineSocket | None = None
        self._aborted = False

    # --- calls ---------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        bytes_max: int = BODY_BYTES_MAX,
        read_ms: int | None = None,
        gzip: bool = False,
        pin: bytes | None = None,
        content: Content | None = None,
    ) -> HttpAnswer:
        """One request and its whole answer, of `bytes_max` bytes at most. `content` is for a body
        that is too large to be held in memory.

        `read_ms` is for all of it, from the first byte that is sent to the last that is read; only
        bytes that do arrive buy more time. `pin` is the digest of the only certificate to accept:
        with any other the call raises ZoneNotTrusted before it sends a byte.
        """
        if content is not None:
            headers = {**headers, "Content-Length": str(content.size)}
        request = self._request(method, path, body, headers, gzip=gzip)
        once = (method, path) in _NOT_TWICE
        patience_ms = read_ms or self._read_ms
        with self._turn:
            line, response = self._send(
                request, method, patience_ms, bytes_max, pin=pin, once=once, content=content
            )
            with self._settling(once=once):
                answer = self._take(line, response, bytes_max)
        if _is_good(answer.status):
            return answer
        error = error_of(answer.status, answer.kind, answer.body, str(self.address))
        if once and isinstance(error, BadAnswer | Unreachable):
            raise self._unsettled(error) from None  # no node has said that nothing happened
        raise error

    def stream(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        read_ms: int | None = None,
        begin_ms: int | None = None,
        gzip: bool = False,
        pin: bytes | None = None,
    ) -> Generator[bytes, None, None]:
        """The body piece by piece, as it arrives; `read_ms` is for each wait, `begin_ms` for the
        head of the answer if that is another time.

        The request is sent when the caller asks for the first piece. A stream that ends too early
        raises.
        """
        request = self._request(method, path, body, headers, gzip=gzip)
        patience_ms = read_ms or self._read_ms
        with self._turn:
            begin_ms = begin_ms or patience_ms
            line, response = self._send(request, method, begin_ms, _PIECE_BYTES, pin=pin)
            whole = False
            try:
                with self._settling():
                    if not _is_good(response.status):
                        answer = self._take(line, response, _ERROR_BYTES_MAX)
                        raise error_of(answer.status, answer.kind, answer.body, str(self.address))
                yield from self._pieces(line, response, patience_ms)
                whole = True
            finally:
                # The rest of the answer must not be read as the answer to the next call.
                if not whole or response.will_close:
                    self._drop()

    def close(self) -> None:
        """Ends the connection; the next call makes a new one."""
        with self._turn:
            self._drop()

    def abort(self) -> None:
        """Ends the client for good, from any thread, without waiting: the current call fails at
        once, and so does every later one.
        """
        self._aborted = True
        line = self._line
        if line is not None:
            line.break_off()

    # --- one exchange --------------------------------------------------------------------------

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        gzip: bool,
    ) -> bytes:
        lines = {
            "Host": self.address.authority,
            "Accept-Encoding": "gzip" if gzip else "identity",
            **self._headers,
            **headers,
        }
        if body is not None or method in ("POST", "PUT"):
            lines.setdefault("Content-Length", str(len(body or b"")))
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items())]
        if not all(line.isascii() and line.isprintable() for line in head) or " " in path:
            # The message does not repeat the line: it may hold a secret.
            raise BadInput("a path or a header contains a character that cannot be sent in one")
        return "\r\n".join([*head, "", ""]).encode("ascii") + (body or b"")

    def _send(
        self,
        request: bytes,
        method: str,
        read_ms: int,
        bytes_max: int,
        *,
        pin: bytes | None = None,
        once: bool = False,
        content: Content | None = None,
    ) -> tuple[DeadlineSocket, HTTPResponse]:
        """Sends a request and reads the head of the answer. A connection that the other side closed
        between two calls is replaced, once.
        """
        begin = partial(self._begin, once=once, content=content)
        line, kept = self._ready(pin)
        try:
            return line, begin(line, request, method, read_ms, bytes_max)
        except Unreachable as error:
            cut = isinstance(error.__cause__, _CUTS)
            if not kept or not cut or line.received or self._aborted:
                raise
        self._drop()
        line, _ = self._ready(pin)
        return line, begin(line, request, method, read_ms, bytes_max)

    def _begin(
        self,
        line: DeadlineSocket,
        request: bytes,
        method: str,
        read_ms: int,
        bytes_max: int,
        *,
        once: bool,
        content: Content | None,
    ) -> HTTPResponse:
        with self._settling(once=once):
            line.allow(read_ms, bytes_max)
            # A server that refuses a request need not read all of it: the answer may be there
            # already.
            with suppress(BrokenPipeError, ConnectionResetError):
                line.sendall(request)
                for piece in () if content is None else content.pieces():
                    line.sendall(piece)
            # HTTPResponse only calls `makefile` of a socket.
            response = HTTPResponse(cast(socket.socket, line), method=method)
            response.begin()
            return response

    def _ready(self, pin: bytes | None) -> tuple[DeadlineSocket, bool]:
        """A connection, and whether it was used before."""
        line = self._line
        if line is not None:
            if not line.is_stale and pin in (None, line.certificate) and not self._aborted:
                return line, True
            self._drop()
        line = self._line = DeadlineSocket()
        with self._settling():
            # Checked after `_line` is set: either `abort` sees the connection, or we see the abort.
            if self._aborted:
                raise ConnectionAbortedError("broken off")
            line.connect(self.address, self._tls(), self._connect_ms)
            if pin not in (None, line.certificate):
                raise ZoneNotTrusted(
                    f"{self.address} shows another certificate than the one that was proved",
                    hint="it may have been made anew, or an attacker is between the two nodes",
                )
        return line, False

    def _tls(self) -> ssl.SSLContext | None:
        if self.address.scheme == "https" and self._context is None:
            self._context = ssl.create_default_context()
        return self._context if self.address.scheme == "https" else None

    def _take(self, line: DeadlineSocket, response: HTTPResponse, bytes_max: int) -> HttpAnswer:
        """Reads the body of an answer, good or bad."""
        most = bytes_max if _is_good(response.status) else _ERROR_BYTES_MAX
        headers = _headers_of(response)
        try:
            body = unpack(headers, _read_body(response, most), most)
        except IncompleteRead as cut:
            part = unpack_part(headers, cut.partial, most)
            raise AnswerCut(response.status, headers, part) from cut.__cause__
        if response.will_close:
            self._drop()
        return HttpAnswer(response.status, headers, body, line.certificate)

    def _pieces(
        self, line: DeadlineSocket, response: HTTPResponse, patience_ms: int
    ) -> Iterator[bytes]:
        reader = unpacker(_headers_of(response))
        _check_length(response)
        while True:
            with self._settling():
                line.allow(patience_ms, _PIECE_BYTES)
                piece = response.read1(_PIECE_BYTES)
                if not piece and (response.length or (reader is not None and not reader.eof)):
                    raise IncompleteRead(b"", response.length)
            if not piece:
                return
            yield from [piece] if reader is None else unpack_pieces(reader, piece)

    # --- what went wrong -----------------------------------------------------------------------

    @contextmanager
    def _settling(self, *, once: bool = False) -> Iterator[None]:
        """An error in this block ends the connection and becomes one that the caller can act on."""
        try:
            yield
        except (OSError, HTTPException, ValueError) as error:
            self._drop()
            raise (self._unsettled(error) if once else self._translated(error)) from error
        except BadAnswer as error:
            self._drop()
            raise (self._unsettled(error) if once else error) from None
        except BaseException:
            self._drop()
            raise

    def _unsettled(self, error: BaseException) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.address} got the request, and its outcome is not known: {reason_of(error)}",
            hint="send it again with the same ids: it is applied once at most",
        )

    def _translated(self, error: Exception) -> HoldfastError:
        if self._aborted:
            return Unreachable(f"the call to {self.address} was broken off")
        if isinstance(error, ssl.SSLError) and not isinstance(error, _CUTS):
            reason = reason_of(error)
            if isinstance(error, ssl.SSLCertVerificationError):
                return BadAnswer(
                    f"{self.address} shows a certificate that is not trusted: {reason}",
                    hint="name a file with the one to trust (ca): a daemon's own is tls.crt in its "
                    "home",
                )
            return BadAnswer(f"{self.address} does not speak TLS as a node does: {reason}")
        if isinstance(error, OSError | IncompleteRead):
            return Unreachable(f"{self.address} does not answer: {reason_of(error)}")
        return BadAnswer(f"{self.address} does not speak HTTP: {reason_of(error)}")

    def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


def bearer(token: str) -> str:
    """The value of the Authorization header for a token."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BadToken("this is not a token")
    return f"Bearer {token}"


def _is_good(status: int) -> bool:
    return 200 <= status < 300


def reason_of(error: BaseException) -> str:
    """Why a connection failed, in a few words that are safe to print."""
    if isinstance(error, HoldfastError):
        return error.message
    if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
        return "it took too long"
    if isinstance(error, IncompleteRead):
        return "the connection broke in the middle of an answer"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return clean(str(text))


def _headers_of(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _check_length(response: HTTPResponse) -> None:
    """Raises unless the answer says how long it is or where it ends: else half of it looks
    whole.
    """
    if response.length is None and not response.chunked:
        raise BadAnswer("the answer does not say how long it is")


def _read_body(response: HTTPResponse, bytes_max: int) -> bytes:
    _check_length(response)
    if response.length is not None and response.length > bytes_max:
        raise BadAnswer(f"the answer has {response.length} bytes; {bytes_max} were expected")
    pieces: list[bytes] = []
    left = bytes_max + 1
    try:
        while left and (piece := response.read1(left)):
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        if not pieces:
            raise
        # What came before it is whole.
        raise IncompleteRead(b"".join(pieces), response.length) from error
    if not left:
        raise BadAnswer(f"the answer has more than the {bytes_max} bytes that were expected")
    if response.length:
        raise IncompleteRead(b"".join(pieces), response.length)
    return b"".join(pieces)
