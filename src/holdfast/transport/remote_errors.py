"""What a call got back: an answer to work with, or the error that the other side reports.

The other side reports an error by its code, so here it becomes the same error again, and a caller
need not care whether it asked the library or a node far away. A code that this version does not
know becomes the error of its family, by the status.

Text from another machine is shown to people and written to logs, so it is cut to a length and what
cannot be printed is taken out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from holdfast.protocol.error_body import ErrorDetail
from holdfast.protocol.log_wire import JSON, MSGPACK
from holdfast.rules import errors
from holdfast.rules.errors import (
    AlreadyExists,
    BadAnswer,
    BadInput,
    EpochChanged,
    HoldfastError,
    StampMoved,
    Truncated,
    Unreachable,
)
from holdfast.rules.expected import read_expect
from holdfast.rules.limits import FREE_NAMES_MAX, LAMPORT_MAX
from holdfast.rules.names import check_mesh
from holdfast.rules.order import Stamp

T = TypeVar("T")

_TEXT_CHARS_MAX: Final = 500
_AWAY: Final = (502, 503, 504)
"""The statuses of a gateway whose node is away."""

_FAMILIES: Final[Mapping[int, type[HoldfastError]]] = {
    400: errors.BadInput,
    401: errors.NotTrusted,
    403: errors.NotAllowed,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.BodyTooLarge,
    429: errors.TooMany,
    507: errors.DiskFull,
}


class HttpAnswer(msgspec.Struct, frozen=True):
    """A complete answer with a good status."""

    status: int
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes
    certificate: bytes = b""
    """The digest of the certificate on the connection that carried it; empty without one."""

    def __repr__(self) -> str:
        # A body may hold what is secret.
        return f"HttpAnswer({self.status}, {len(self.body)} bytes)"

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self, type: type[T]) -> T:
        self.expect(JSON)
        try:
            return msgspec.json.decode(self.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # The message of a decoder quotes no more of the body than the name of a field.
            raise BadAnswer(f"the answer is not the JSON that belongs there: {error}") from None

    def msgpack(self) -> bytes:
        self.expect(MSGPACK)
        return self.body

    def expect(self, kind: str) -> None:
        if self.kind != kind:
            raise BadAnswer(f"the answer is {clean(self.kind) or 'of no kind'!r}, not {kind!r}")


class _Detail(ErrorDetail, frozen=True):
    """As a stranger may write it: the code is enough."""

    message: str = ""


class _Body(msgspec.Struct):
    error: _Detail


_body: Final = msgspec.json.Decoder(_Body)


def error_of(status: int, kind: str, body: bytes, who: str) -> HoldfastError:
    """The error in an answer with a bad status. `who` is the address that answered."""
    try:
        detail = _body.decode(body).error if kind == JSON else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        detail = None
    if detail is None or not _is_possible(detail):
        return _by_status(status, who)
    message = clean(detail.message) or f"{who} answers {status}"
    hint = clean(detail.hint) or None
    if detail.code == Truncated.code and detail.first_available is not None:
        return Truncated(message, first_available=detail.first_available, hint=hint)
    if detail.code == EpochChanged.code and detail.epoch is not None:
        return EpochChanged(message, epoch=detail.epoch, hint=hint)
    if detail.code == AlreadyExists.code:
        return AlreadyExists(message, free=_names(detail.free), hint=hint)
    if detail.code == StampMoved.code:
        return StampMoved(message, present=_stamp(detail.present), hint=hint)
    known = _BY_CODE.get(detail.code) or _FAMILIES.get(status)
    if known is None or issubclass(known, Truncated | EpochChanged):
        return BadAnswer(f"{who} answers {status} {clean(detail.code)!r}: {message}", hint=hint)
    return known(message, hint=hint)


def _names(given: tuple[str, ...]) -> tuple[str, ...]:
    """They go into a command that is offered: a stranger may write anything."""
    found = []
    for name in given[:FREE_NAMES_MAX]:
        with suppress(HoldfastError):
            found.append(check_mesh(name))
    return tuple(found)


def _stamp(text: str | None) -> Stamp | None:
    try:
        return None if text is None else read_expect(text)
    except BadInput:
        return None  # a stranger may write anything; the message says it too


def _is_possible(detail: ErrorDetail) -> bool:
    """Whether its numbers are those of a log: others could not even be stored."""
    numbers = (detail.first_available, detail.epoch)
    return all(number is None or 1 <= number <= LAMPORT_MAX for number in numbers)


def error_by_code(code: str, message: str, hint: str = "") -> HoldfastError:
    """The error in a frame; BadAnswer for a code that this version does not know."""
    text, advice = clean(message), clean(hint)
    known = _BY_CODE.get(code)
    if known is None or issubclass(known, Truncated | EpochChanged):
        return BadAnswer(f"{clean(code)}: {text}", hint=advice)
    return known(text, hint=advice)


def _by_status(status: int, who: str) -> HoldfastError:
    """The error for a status alone: an answer without a body, or not from a node at all."""
    if status in _AWAY:
        return Unreachable(f"{who} is away: what stands before it answers {status}")
    known = _FAMILIES.get(status)
    if known is None:
        return BadAnswer(f"{who} answers {status}, and not as a node does")
    return known(f"{who} answers {status}")


def clean(text: str) -> str:
    """Text from outside as one line that is safe to show."""
    cut = text[:_TEXT_CHARS_MAX]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut)


def _all(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _all(child)


_BY_CODE: Final = {kind.code: kind for kind in _all(HoldfastError)}
