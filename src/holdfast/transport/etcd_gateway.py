"""Calls to an etcd through its JSON gateway: any member may answer, and every call has a deadline.

Each call may be sent more than once, to one member after another, until one answers or the time is
over: reads change nothing, and whoever writes asks for something that happens once at most however
often it is asked for (see `rules/etcd/outcome.py`). So a lost answer costs a repetition and no
decision. One try has a second at most, because an etcd that has lost its leader would let the first
write wait for seven.

A call returns its answer, or raises:

- `OutcomeUnknown`: a write was sent, and no answer says what became of it. That also holds if a
  later try was refused: the first one may still happen.
- `Unreachable`: no member answers; a write was not even sent.
- what the etcd refuses for good (`rules/etcd/faults.py`), or `BadAnswer` for what no etcd says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from holdfast.protocol import etcd_json
from holdfast.protocol.etcd_json import (
    AUTHENTICATE,
    WATCH,
    Credentials,
    GatewayError,
    TokenAnswer,
    WatchAnswer,
    WatchRequest,
    read_error,
    read_line,
)
from holdfast.rules.errors import (
    BadAnswer,
    EtcdDenied,
    HoldfastError,
    OutcomeUnknown,
    StoreClosed,
    TooMany,
    Unreachable,
)
from holdfast.rules.etcd.endpoints import Rotation, pause_ms
from holdfast.rules.etcd.faults import UNAVAILABLE, Fault, code_of_cancel, error_of, fault_of
from holdfast.rules.etcd.versions import check_version
from holdfast.rules.limits import (
    ETCD_ANSWER_BYTES_MAX,
    ETCD_LINE_BYTES_MAX,
    ETCD_TRY_MS_MAX,
    SECOND_MS,
)
from holdfast.transport.etcd_address import EtcdAddress, EtcdMember
from holdfast.transport.etcd_member import CallAttempt, MemberConnections
from holdfast.transport.etcd_token import TokenKeeper
from holdfast.transport.http_client import reason_of
from holdfast.transport.remote_errors import clean

T = TypeVar("T")

_MARGIN_S: Final = 0.1
"""How much longer than the member itself we wait for its word that the time is over."""
_AUTHENTICATE_TRIES: Final = 5
_WATCH_TRIES: Final = 2
"""A watch gets the time of so many tries for its first line."""
_REPEATED: Final = (Fault.NOT_SENT, Fault.UNSETTLED)
_WATCH_HEADERS: Final = {"Grpc-Metadata-hasleader": "true"}
"""Without this, a member that has lost its leader opens a watch and stays silent."""


class _Failure(NamedTuple):
    """What the tries of a call came to, if not to an answer."""

    fault: Fault
    error: HoldfastError
    unsettled: bool
    """Whether one of them may have been done, or may be done later."""


class EtcdGateway:
    """One etcd. Belongs to one event loop."""

    def __init__(self, address: EtcdAddress, *, try_ms: int = ETCD_TRY_MS_MAX) -> None:
        """Reads the certificates that the address names; connects with the first call."""
        context = address.context()
        self._address = address
        self._members = [
            MemberConnections(
                member,
                context,
                None if address.allow_old_version else partial(check_version, member=str(member)),
            )
            for member in address.members
        ]
        self._rotation = Rotation(len(self._members))
        self._try_s = try_ms / SECOND_MS
        self.tokens = None if address.user is None else TokenKeeper(self._authenticate)
        self._is_closed = False

    @property
    def members(self) -> tuple[EtcdMember, ...]:
        return self._address.members

    async def close(self) -> None:
        """Ends every call and every watch."""
        self._is_closed = True
        for member in self._members:
            await member.close()
        await asyncio.sleep(0)  # for sockets that were about to be closed anyway

    # --- calls ---------------------------------------------------------------------------------

    async def call(
        self,
        path: str,
        request: msgspec.Struct,
        kind: type[T],
        *,
        until: float,
        writes: bool = False,
        only: int | None = None,
    ) -> T:
        """One call until its deadline, a time of the loop's clock. `only` asks one member alone, by
        its number.
        """
        body = etcd_json.encode(request)
        token = await self._token(until)
        got = await self._tries(path, token, body, until, only)
        if isinstance(got, _Failure) and got.fault is Fault.TOKEN and self.tokens is not None:
            unsettled = got.unsettled
            token = await self._token(until, refused=token)
            got = await self._tries(path, token, body, until, only)
            if isinstance(got, _Failure):
                got = got._replace(unsettled=got.unsettled or unsettled)
        if isinstance(got, _Failure):
            raise _unknown(got.error) if writes and got.unsettled else got.error
        try:
            return etcd_json.decode(got, kind)
        except BadAnswer as error:
            raise _unknown(error) if writes else error from None

    async def watch(self, request: WatchRequest) -> AsyncGenerator[WatchAnswer, None]:
        """The lines of a watch, by one member. It ends by an error: with `Unreachable` another
        watch may go on where this one was. The caller bounds each wait.
        """
        body = etcd_json.encode(request)
        token = await self._token(asyncio.get_running_loop().time() + self._try_s)
        for is_last in (False, True):
            number = self._rotation.current
            headers = {**_WATCH_HEADERS, **_authorization(token)}
            told = GatewayError(UNAVAILABLE, "the watch ended")
            lines = self._members[number].lines(WATCH, headers, body, ETCD_LINE_BYTES_MAX)
            try:
                async with aclosing(lines):
                    async with asyncio.timeout(_WATCH_TRIES * self._try_s):
                        status, line = await _next(lines)
                    while line:
                        said = _read_line(status, line)
                        if isinstance(said, GatewayError):
                            told = said
                            break
                        yield said
                        status, line = await _next(lines)
            except OSError as error:
                told = GatewayError(UNAVAILABLE, reason_of(error))
            failure = self._failure(number, 0, told)
            if failure.fault is not Fault.TOKEN or self.tokens is None or is_last:
                self._move_on(number)
                raise failure.error
            token = await self.tokens.renewed(token)

    def suspect(self) -> None:
        """A watch was silent although there was something to say: the next one, and calls, go to
        another member.
        """
        self._move_on(self._rotation.current)

    # --- tries ---------------------------------------------------------------------------------

    async def _tries(
        self, path: str, token: str | None, body: bytes, until: float, only: int | None
    ) -> bytes | _Failure:
        """The very same bytes, to one member after another, until one decides or time is over."""
        failures, unsettled = 0, False
        while True:
            number = self._rotation.current if only is None else only
            got = await self._try(number, path, token, body, until)
            if not isinstance(got, _Failure):
                return got
            unsettled = unsettled or got.unsettled
            if got.fault not in _REPEATED:
                return got._replace(unsettled=unsettled)
            failures += 1
            self._move_on(number)
            pause_s = pause_ms(failures, len(self._members) if only is None else 1) / SECOND_MS
            if asyncio.get_running_loop().time() + pause_s >= until:
                return got._replace(unsettled=unsettled)
            await asyncio.sleep(pause_s)

    async def _try(
        self, number: int, path: str, token: str | None, body: bytes, until: float
    ) -> bytes | _Failure:
        if self._is_closed:
            raise StoreClosed("the etcd is no longer asked", hint="open it again")
        member = self._members[number]
        try:
            async with asyncio.timeout_at(until):
                await member.room.acquire()
        except TimeoutError:
            # Our own calls are in the way, which says nothing of the member.
            return _Failure(Fault.BUSY, TooMany("too many calls to the etcd wait"), False)
        try:
            return await self._post(number, path, token, body, until)
        finally:
            member.room.release()

    async def _post(
        self, number: int, path: str, token: str | None, body: bytes, until: float
    ) -> bytes | _Failure:
        attempt, now = CallAttempt(), asyncio.get_running_loop().time()
        allowed_s = max(0.001, min(self._try_s, until - now))
        headers = {"Grpc-Timeout": f"{int(allowed_s * SECOND_MS)}m", **_authorization(token)}
        try:
            async with asyncio.timeout_at(min(now + allowed_s + _MARGIN_S, max(until, now))):
                answer = await self._members[number].post(
                    path, headers, body, ETCD_ANSWER_BYTES_MAX, attempt
                )
        except OSError as error:  # the end of the time among them
            fault = Fault.UNSETTLED if attempt.sent else Fault.NOT_SENT
            told = error_of(fault, reason_of(error), str(self._members[number].member))
            return _Failure(fault, told, attempt.sent)
        except HoldfastError as error:  # BadAnswer or EtcdTooOld
            return _Failure(Fault.GARBAGE, error, attempt.sent)
        if answer.status == 200:
            return answer.body
        return self._failure(number, answer.status, read_error(answer.body))

    def _failure(self, number: int, status: int, told: GatewayError) -> _Failure:
        fault = fault_of(status, told.code, told.message)
        message = clean(told.message) or f"it answers {status}"
        error = error_of(fault, message, str(self._members[number].member))
        # What is not etcd's own word decides nothing.
        return _Failure(fault, error, fault in (Fault.UNSETTLED, Fault.GARBAGE))

    def _move_on(self, number: int) -> None:
        self._members[number].failed()
        self._rotation = self._rotation.after_failure(number)

    # --- the token -----------------------------------------------------------------------------

    async def _token(self, until: float, refused: str | None = None) -> str | None:
        if self.tokens is None:
            return None
        try:
            async with asyncio.timeout_at(until):
                return await (self.tokens.renewed(refused) if refused else self.tokens.token())
        except TimeoutError:
            raise Unreachable("no member of the etcd has given a token in time") from None

    async def _authenticate(self) -> str:
        assert self._address.user is not None, "else there is nothing to ask for"
        request = Credentials(name=self._address.user, password=self._address.password())
        until = asyncio.get_running_loop().time() + _AUTHENTICATE_TRIES * self._try_s
        got = await self._tries(AUTHENTICATE, None, etcd_json.encode(request), until, None)
        if isinstance(got, _Failure):
            refused = got.fault is Fault.REFUSED
            raise EtcdDenied(got.error.message) if refused else got.error
        return etcd_json.decode(got, TokenAnswer).token


async def _next(lines: AsyncGenerator[tuple[int, bytes], None]) -> tuple[int, bytes]:
    """The next line with its status; an empty one at the end."""
    # Not `anext` with a default, which Python 3.11 cannot interrupt.
    try:
        return await anext(lines)
    except StopAsyncIteration:
        return 0, b""


def _read_line(status: int, line: bytes) -> WatchAnswer | GatewayError:
    if status != 200:
        return read_error(line)
    said = read_line(line)
    if isinstance(said, GatewayError) or not said.canceled or said.compact_revision:
        return said
    return GatewayError(code_of_cancel(said.cancel_reason), said.cancel_reason)


def _authorization(token: str | None) -> Mapping[str, str]:
    return {} if token is None else {"Authorization": token}


def _unknown(error: HoldfastError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the outcome is not known: {error.message}",
        hint="ask again with the same id: it is applied once at most",
    )
