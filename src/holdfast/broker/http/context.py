"""What the handlers of a broker may reach, and how they learn who calls.

A caller that can open the Unix socket in the broker's folder is its operator. Every other caller
brings the session that a hello gave: it stands for a key, and the store says what the key may do.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final

from starlette.types import Receive, Scope

from holdfast.broker.access import position_of
from holdfast.broker.broker import Broker
from holdfast.broker.figures import FigureCount
from holdfast.broker.http.metrics_tokens import KIND as METRICS
from holdfast.broker.http.metrics_tokens import MetricsTokens
from holdfast.protocol.broker_http import Standing
from holdfast.rules import limits
from holdfast.rules.broker_rows import BrokerMesh, MemberRow, Membership
from holdfast.rules.errors import BadInput, BadToken, NotGranted
from holdfast.rules.keys import KEY_BYTES, TOKEN_PREFIX
from holdfast.rules.names import check_mesh
from holdfast.service.caller import LOCAL, Caller
from holdfast.service.http.request import (
    ANYONE,
    ConcurrencyLimits,
    Request,
    RequestCounts,
    bearer,
    is_own,
)
from holdfast.service.http.route import Phase, Route

_KEY_DIGITS: Final = 2 * KEY_BYTES


class BrokerApi:
    """One for each broker process."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.store = broker.store
        self.sessions = broker.sessions
        self.figures = FigureCount(broker.store, monotonic)
        self.gate = ConcurrencyLimits()
        self.gate.most["call"] = limits.BROKER_CALLS_MAX
        self.counts = RequestCounts()
        self.phase: Phase = "starting"
        self.routes: list[Route] = []
        self.pages: dict[str, bytes] = {}
        self.tokens = MetricsTokens(broker.settings.store)
        self.started_at = broker.source.now_ms() / limits.SECOND_MS
        self.addresses: list[str] = []
        """Where it listens."""
        self.doors: list[str] = []
        """Those of them at which it is this process that answers, and no other one."""
        self.open_door: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Makes it listen on loopback too, if it does not."""

    intro = (
        "The Unix socket in the broker's folder is for its operator. Everybody else shows a key "
        "(<code>POST /v1/hello</code>), and sends the session that it gets for that: "
        "<code>Authorization: Bearer SESSION</code>."
    )
    """What `/docs` says of callers."""

    def reader_of(self, route: Route) -> tuple[str, str]:
        """Who makes a call that is neither everybody's nor the operator's own, and with what."""
        if route.path == "/metrics":
            return "the operator, or a token: holdfast token add NAME --store FOLDER", "TOKEN"
        return "a key that has said hello", "SESSION"

    @property
    def title(self) -> str:
        return self.broker.identity.name

    @property
    def about(self) -> str:
        return "A broker of Holdfast: meshes, members, what they hand in and what they get."

    def now_ms(self) -> int:
        return self.broker.source.now_ms()

    def admit(self, route: Route, scope: Scope, receive: Receive) -> BrokerRequest:
        caller = ANYONE if route.public else self.identify(scope)
        if caller.kind == METRICS and route.path != "/metrics":
            raise NotGranted(f"the token {caller.name!r} reads the metrics and nothing else")
        return BrokerRequest(self, route, scope, receive, caller)

    def identify(self, scope: Scope) -> Caller:
        return self.asking(scope)()

    def asking(self, scope: Scope) -> Callable[[], Caller]:
        """`identify` for a head that comes again and again: what it says is read once, whether that
        is good is asked each time.
        """
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if is_own(scope) and not any(name == b"authorization" for name, _ in headers):
            return lambda: LOCAL
        secret = bearer(scope)
        if secret.startswith(TOKEN_PREFIX):
            return lambda: self.tokens.caller_of(secret, self.now_ms())
        session = self.sessions.asking(secret)

        def ask() -> Caller:
            caller = session()
            if caller is None:
                hint = "say hello again"
                raise BadToken("the session is not known here, or has ended", hint=hint)
            return caller

        return ask

    def certificate_of(self, listener: str) -> bytes:
        return self.broker.certificate_of(listener)

    async def run(self, work: Any, *args: Any) -> Any:
        return await self.broker.run(work, *args)


class BrokerRequest(Request[BrokerApi]):
    """One request to a broker."""

    __slots__ = ()

    @property
    def key(self) -> bytes:
        """The key of the caller; the operator has none."""
        if not self.caller.key:
            raise BadToken("this call is for a key that has said hello", hint="say hello first")
        return self.caller.key

    @property
    def mesh(self) -> str:
        return check_mesh(self.path["mesh"])

    async def member(self, *grants: str) -> MemberRow:
        """The caller as a member of the mesh in the path; NotGranted without these grants."""
        strangers = self.api.broker.strangers
        return await strangers.require_member(self.mesh, self.key, *grants)


async def standing_of(api: BrokerApi, mesh: BrokerMesh, member: MemberRow) -> Standing:
    """Where a mesh stands, as one of its members sees it."""
    epochs = await api.store.epochs(mesh.slug)
    return standing(Membership(mesh=mesh, member=member, epochs=epochs))


def standing(found: Membership) -> Standing:
    place, mesh = position_of(found), found.mesh
    return Standing(
        slug=mesh.slug,
        name=mesh.name,
        server_id=mesh.server_id,
        epoch=mesh.epoch,
        base=mesh.base,
        first=mesh.first,
        seq=mesh.seq,
        grants=place.grants,
        epochs=place.epochs,
    )


def key_of(text: str) -> bytes:
    """A member's key as 64 lower-case hex digits."""
    if len(text) != _KEY_DIGITS or text.strip("0123456789abcdef"):
        raise BadInput("a member's key is 64 lower-case hex digits")
    return bytes.fromhex(text)
