"""Handing in one envelope, without the framework, and read together with others.

This call is made far more often than all others. What its head says is worked out once for each
head that is known (`transport.known_heads`); who calls, whether the session holds and whether the
key was a member is asked for each. The envelopes wait, as they came, until the store takes the next
group. Then those of one member, in one mesh, are read in columns, as if they had come as one push:
each gets its own verdict, and those that are created as a whole are answered as a whole.

What is unusual about a call (a large body, a broker that is stopping) sends it the common way,
where it gets the same answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from holdfast.broker.http import envelopes
from holdfast.broker.http.context import BrokerApi
from holdfast.broker.pushes.decode_push import SLICE_ITEMS, PushSlice, Sender, decode_slice
from holdfast.broker.pushes.push_frame import PackedPush
from holdfast.broker.verdicts import Outcome
from holdfast.protocol.log_wire import JSON
from holdfast.rules import limits
from holdfast.rules.broker_rows import PushedEnvelope
from holdfast.rules.errors import BadToken, HoldfastError
from holdfast.rules.names import check_mesh
from holdfast.rules.push_columns import Created, spans_of
from holdfast.service.caller import Caller
from holdfast.service.http.errors import internal
from holdfast.transport.http_protocol import Done
from holdfast.transport.http_server import LISTENER
from holdfast.transport.known_heads import Headers, RequestHead

log = logging.getLogger("holdfast")

_BEGIN: Final = b"/v1/meshes/"
_END: Final = b"/envelopes"
_ROUTE: Final = "/v1/meshes/{mesh}/envelopes"
_JSON: Final = (b"content-type", JSON.encode())
_EPOCH: Final = envelopes.EPOCH_HEADER.encode()
_PLAIN: Final = (_JSON,)
_AGAIN: Final = (_JSON, (b"retry-after", b"1"))
_HEADERS: Final[dict[int, Headers]] = {
    401: (_JSON, (b"www-authenticate", b'Bearer realm="holdfast"')),
    429: _AGAIN,
    503: _AGAIN,
}


class _Meaning:
    """What a head says, as long as it is looked at."""

    __slots__ = ("caller", "epoch", "mesh")

    def __init__(self, caller: Callable[[], Caller], mesh: str) -> None:
        self.caller, self.mesh = caller, mesh
        self.epoch: int | None = None
        """What stands in its header; None before that was read."""


class _From(NamedTuple):
    """Whose envelopes are read together."""

    mesh: str
    key: bytes
    name: str
    epoch: int


class _Calls:
    """Calls that wait, in the order in which they came: their bodies, when they began, and what
    answers them.
    """

    __slots__ = ("begun", "bodies", "dones")

    def __init__(self, bodies: list[bytes], begun: list[float], dones: list[Done]) -> None:
        self.bodies, self.begun, self.dones = bodies, begun, dones

    def first(self, many: int) -> _Calls:
        """Takes so many away."""
        taken = _Calls(self.bodies[:many], self.begun[:many], self.dones[:many])
        del self.bodies[:many], self.begun[:many], self.dones[:many]
        return taken


class FastAccept:
    """The call for one broker process."""

    def __init__(self, api: BrokerApi) -> None:
        self._api = api
        gate = api.gate
        self._most = gate.most["call"] - gate.most["call"] // limits.OWN_SHARE
        self._waiting: dict[_From, _Calls] = {}
        self.waits = 0
        """How many envelopes wait to be read."""
        self._created_in: tuple[int, Headers] = -1, ()
        """An epoch, and the headers of an answer in it."""

    def takes(self, url: bytes) -> bool:
        return (
            url.endswith(_END)
            and url.startswith(_BEGIN)
            and self._api.phase == "ready"
            and self._api.gate.now["call"] < self._most
        )

    def answer(self, head: RequestHead, body: bytes, done: Done) -> None:
        begun = perf_counter()
        api = self._api
        api.gate.now["call"] += 1
        try:
            meaning: _Meaning | None = head.meaning
            if meaning is None:
                meaning = self._meaning_of(head)
            caller = meaning.caller()
            if not caller.key:
                raise BadToken("this call is for a key that has said hello", hint="say hello first")
            if api.broker.strangers.was_member(meaning.mesh, caller.key):
                self._gather(head, caller, body, begun, done)
                return
        except Exception as error:
            self._refuse(error, begun, done)
            return
        api.broker.in_background(self._look_first(head, caller, body, begun, done))

    async def _look_first(
        self, head: RequestHead, caller: Caller, body: bytes, begun: float, done: Done
    ) -> None:
        """The same for a key that is perhaps no member: nothing is decoded before that is known."""
        try:
            await self._api.broker.strangers.require_member(head.meaning.mesh, caller.key)
            self._gather(head, caller, body, begun, done)
        except Exception as error:
            self._refuse(error, begun, done)

    def _meaning_of(self, head: RequestHead) -> _Meaning:
        caller = self._api.asking({LISTENER: head.kind, "headers": head.headers})
        caller()  # whoever has not said hello does not learn what a name looks like
        # A name that is spelled with escapes is no name of a mesh either way.
        mesh = check_mesh(head.url[len(_BEGIN) : -len(_END)].decode("latin-1"))
        meaning = head.meaning = _Meaning(caller, mesh)
        return meaning

    def _gather(
        self, head: RequestHead, caller: Caller, body: bytes, begun: float, done: Done
    ) -> None:
        """Keeps an envelope until the next group begins."""
        meaning: _Meaning = head.meaning
        epoch = meaning.epoch
        if epoch is None:
            epoch = meaning.epoch = _epoch_in(head.headers)
        whose = _From(meaning.mesh, caller.key, caller.name, epoch)
        self.waits += 1
        calls = self._waiting.get(whose)
        if calls is not None:
            calls.bodies.append(body)
            calls.begun.append(begun)
            calls.dones.append(done)
            return
        if not self._waiting:
            self._api.broker.accepting.expect(self)
        self._waiting[whose] = _Calls([body], [begun], [done])

    def bring(self) -> None:
        """Reads what waits, but not so much at a time that others wait for long."""
        waiting, self._waiting = self._waiting, {}
        room = SLICE_ITEMS
        for whose, calls in waiting.items():
            if len(calls.bodies) > room:
                self._waiting[whose] = calls
                calls = calls.first(room)
            room -= len(calls.bodies)
            self.waits -= len(calls.bodies)
            if calls.bodies:
                self._read(whose, calls)
        if self._waiting:
            self._api.broker.accepting.expect(self)

    def _read(self, whose: _From, calls: _Calls) -> None:
        broker = self._api.broker
        bodies = calls.bodies
        many = len(bodies)
        push = PackedPush(whose.mesh, whose.epoch, b"".join(bodies), range(many), spans_of(bodies))
        try:
            part = decode_slice(
                push, 0, many, 0, Sender(whose.key, whose.name), broker.source.new_id
            )
        except Exception as error:
            if many == 1:
                self._refuse(error, calls.begun[0], calls.dones[0])
            else:  # a fault of ours: it is one of them, and no reason to refuse the others
                while calls.bodies:
                    self._read(whose, calls.first(1))
            return
        for bad in part.bad.values():
            broker.counts.refused[bad.code] += 1
        if part.good:
            broker.accepting.take(part.good, partial(self._accepted, calls, part))
        else:
            self._accepted(calls, part, ())

    # --- answers -----------------------------------------------------------------------------

    def _accepted(self, calls: _Calls, part: PushSlice, outcomes: Sequence[Outcome]) -> None:
        if isinstance(outcomes, Created) and not part.bad:
            bodies = envelopes.created_bodies(part.good, outcomes)
            self._created(calls, bodies, self._headers_in(outcomes.epoch))
            return
        rest = zip(part.good, outcomes, strict=True)
        for at, (begun, done) in enumerate(zip(calls.begun, calls.dones, strict=True)):
            if (bad := part.bad.get(at)) is not None:
                self._refuse(bad, begun, done)
            else:
                self._tell(*next(rest), begun, done)

    def _created(self, calls: _Calls, bodies: Sequence[bytes], headers: Headers) -> None:
        many = len(calls.dones)
        self._api.gate.now["call"] -= many
        took_s = perf_counter() * many - sum(calls.begun)
        self._api.counts.add("POST", _ROUTE, 201, took_s, many)
        for done, body in zip(calls.dones, bodies, strict=True):
            _told(done, 201, body, headers)

    def _tell(self, one: PushedEnvelope, outcome: Outcome, begun: float, done: Done) -> None:
        try:
            if isinstance(outcome, HoldfastError):
                raise outcome
            status, body, epoch = envelopes.answer(self._api.broker, one, outcome)
        except Exception as error:
            self._refuse(error, begun, done)
        else:
            self._end(status, begun)
            _told(done, status, body, self._headers_in(epoch))

    def _headers_in(self, epoch: int) -> Headers:
        if epoch != self._created_in[0]:
            self._created_in = epoch, (_JSON, (_EPOCH, b"%d" % epoch))
        return self._created_in[1]

    def _refuse(self, error: Exception, begun: float, done: Done) -> None:
        if isinstance(error, HoldfastError):
            status, body = error.http_status, envelopes.refused(error)
            if status >= 500:
                log.warning("POST %s: %s", _ROUTE, error.message)
        else:
            log.error("a fault of ours in POST %s", _ROUTE, exc_info=error)
            status, body = 500, bytes(internal().body)
        self._end(status, begun)
        _told(done, status, body, _HEADERS.get(status, _PLAIN))

    def _end(self, status: int, begun: float) -> None:
        self._api.gate.now["call"] -= 1
        self._api.counts.add("POST", _ROUTE, status, perf_counter() - begun)


def _told(done: Done, status: int, body: bytes, headers: Headers) -> None:
    try:
        done(status, body, headers)
    except Exception:
        # Of this connection alone: the others have their answers with the same group.
        log.exception("a fault of ours: an answer was not sent")


def _epoch_in(headers: Headers) -> int:
    epoch = 0
    for name, value in headers:
        if name == _EPOCH:
            epoch = envelopes.epoch_of(value.decode("latin-1"))
    return epoch
