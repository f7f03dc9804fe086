"""The links of one peer: who comes in, whom we dial, and that there is one link to each.

A connection passes through here three times: as a stranger, whose time and memory are bounded
(`rules/bus/links/strangers.py`); as a peer that has proved its key, when it is decided whether this
connection becomes the link (`rules/bus/links/link_choice.py`); and as a link, until it ends. The
bus is told of links only: at any moment there is at most one link up to a key, and the end of one
is told before the next one is up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count

from holdfast.bus.links.dialling import Dial, DialStatus, DialView, WantedPeer
from holdfast.bus.links.frame_connection import FrameConnection
from holdfast.bus.links.hello import Greeted, Greeter
from holdfast.bus.links.link import CLOSING, PeerLink
from holdfast.bus.ports import LinkEvents, Listening, Net
from holdfast.protocol.bus_frames import FrameKind, GoodbyeFrame, Stream, told
from holdfast.rules.backoff import Allowance
from holdfast.rules.bus.links.dial_plan import DialState
from holdfast.rules.bus.links.link_choice import InboundVerdict, inbound_verdict
from holdfast.rules.bus.links.strangers import whom_to_drop
from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.succession import KeySuccession
from holdfast.rules.errors import (
    AnotherConnection,
    BusClosed,
    CapabilityRefused,
    HoldfastError,
    InviteEnded,
    MemberBarred,
    PeerCopied,
    PeerNameTaken,
    PeerUnreachable,
    TooMany,
    TooSlow,
)
from holdfast.rules.limits import (
    BUS_CLOSE_MS_MAX,
    BUS_FAULT_BACK_MS,
    BUS_FAULTS_MAX,
    BUS_HELLO_MS_MAX,
    BUS_STRANGERS_MAX,
    REASON_CHARS_MAX,
    SECOND_MS,
)
from holdfast.service.problem import Problem
from holdfast.service.supervisor import Supervisor, TaskUnit

log = logging.getLogger("holdfast")

_END_S = 2 * BUS_CLOSE_MS_MAX / SECOND_MS

_TOLD = (CapabilityRefused, InviteEnded, MemberBarred, PeerCopied, PeerNameTaken)
_Unit = TaskUnit[DialState, Dial]


def _ignore_key(key: PeerKey) -> None:
    pass


class BusLinks:
    """All links of one peer. Belongs to the loop's thread."""

    def __init__(
        self,
        seed: bytes,
        net: Net,
        events: LinkEvents,
        *,
        random: Callable[[int], bytes],
        jitter: Callable[[], float],
        now_ms: Callable[[], int],
        missed: Callable[[PeerKey], None] = _ignore_key,
        copied: Callable[[PeerKey], None] = _ignore_key,
        former: Sequence[KeySuccession] = (),
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`missed` gets the keys of a peer that was at none of its addresses, `copied` those of one
        that has a link with another process of our key; `changed` hears when it stands otherwise
        with a wanted peer. `former`: how this peer came to its key.
        """
        self._missed, self._copied, self._changed = missed, copied, changed
        self._greeter = Greeter(seed, events, random, former)
        self.key = self._greeter.key
        self._net, self._events, self._jitter, self._now_ms = net, events, jitter, now_ms
        self._loop = asyncio.get_running_loop()
        self._listening: list[Listening] = []
        self._strangers: dict[asyncio.Task[None], FrameConnection] = {}
        """Connections that others dialled and that have proved nothing, the oldest first."""
        self._settled: dict[PeerKey, asyncio.Future[None]] = {}
        """Peers to whom a dial of ours has sent its proof; done when that has ended."""
        self._up: dict[PeerKey, PeerLink] = {}
        self._open: dict[FrameConnection, None] = {}
        self._refused: dict[FrameConnection, None] = {}
        """Those that were told why and have not closed yet, the oldest first."""
        self._faults: dict[PeerKey, Allowance] = {}
        self._supervisor: Supervisor[str, _Unit] = Supervisor(self._begin)
        self._wanted: dict[str, WantedPeer] = {}
        self._numbers = count(1)
        """Connections that come in and links that come up, in their order."""
        self._is_closing = False
        self.counts: Counter[str] = Counter()
        """What was refused, by the code of the reason."""

    # --- for the bus ---------------------------------------------------------------------------

    async def listen(self, address: str) -> str:
        """Lets peers in at host:port. Returns the address as it is bound."""
        listening = await self._net.listen(address, lambda: FrameConnection(self._accepted))
        self._listening.append(listening)
        return listening.address

    def refresh(self, wanted: Mapping[str, WantedPeer]) -> None:
        """Keeps links to these peers from now on, by name, and dials no others. A peer with other
        addresses than before is dialled at once. Links that others dialled stay.
        """
        self._wanted = dict(wanted)
        for unit in self._supervisor.refresh(wanted).changed:
            unit.work.change(self._wanted[unit.work.name])
            unit.wake()

    def found(self, name: str, addresses: Sequence[str]) -> None:
        """A wanted peer may be there: it is dialled at once if it has no link. If it has one and
        this address is new, it may have moved: it has to show that it is still at the other end.
        """
        unit = self._supervisor.units.get(name)
        if unit is None:
            return
        is_new = unit.work.found(addresses)
        unit.wake()
        link = self.link_to(self._wanted[name].keys)
        if is_new and link is not None:
            link.doubt()

    def link_to(self, keys: Collection[PeerKey]) -> PeerLink | None:
        """The link to the peer that has one of these keys."""
        return next((self._up[key] for key in keys if key in self._up), None)

    def all(self) -> list[PeerLink]:
        return list(self._up.values())

    def dials(self) -> list[DialView]:
        """How it stands with each wanted peer."""
        return [unit.work.status.view() for unit in self._supervisor.units.values()]

    def try_now(self, name: str) -> None:
        """Dials a wanted peer at once, if it is not linked."""
        unit = self._supervisor.units.get(name)
        if unit is not None:
            unit.wake()

    def problem(self, name: str) -> Problem | None:
        """Why there is no link to a wanted peer; None if there is one, or nothing went wrong."""
        unit = self._supervisor.units.get(name)
        view = None if unit is None else unit.work.status.view()
        if view is None or view.state is DialState.LINKED or not view.attempts:
            return None
        return view.last_error

    async def close(self) -> None:
        """Says goodbye on all links, and returns when all connections have ended."""
        self._is_closing = True
        for listening in self._listening:
            await listening.close()
        units = self._supervisor.stop()
        for link in self.all():
            link.close(CLOSING)
        for task in list(self._strangers):
            task.cancel()
        await asyncio.gather(*(unit.join(_END_S) for unit in units))
        if self._open:
            await asyncio.wait([one.closed for one in self._open], timeout=_END_S)

    # --- connections ---------------------------------------------------------------------------

    def _accepted(self, connection: FrameConnection) -> None:
        if self._is_closing:
            connection.abort()
            return
        if len(self._strangers) >= BUS_STRANGERS_MAX:
            hosts = [one.host for one in self._strangers.values()]
            late = list(self._strangers)[whom_to_drop(hosts)]
            self.counts[TooMany.code] += 1
            self._strangers.pop(late).abort()
            late.cancel()
        self._opened(connection)
        task = self._loop.create_task(self._let_in_by_hello(connection, next(self._numbers)))
        self._strangers[task] = connection
        task.add_done_callback(lambda task: self._strangers.pop(task, None))

    def _opened(self, connection: FrameConnection) -> None:
        self._open[connection] = None
        connection.closed.add_done_callback(lambda _: self._open.pop(connection, None))

    async def _let_in_by_hello(self, connection: FrameConnection, begun: int) -> None:
        try:
            async with asyncio.timeout(BUS_HELLO_MS_MAX / SECOND_MS):
                greeted = await self._greeter.answer(connection, partial(self._let_in, begun))
            self._link(connection, greeted, dialled=False, address=connection.host)
        except TimeoutError:
            self._refuse(connection, TooSlow(f"{connection.host} did not prove a key in time"))
        except HoldfastError as error:
            self._refuse(connection, error)
        except asyncio.CancelledError:
            connection.abort()
            raise
        except Exception:
            log.exception("a hello from %s met a fault of Holdfast", connection.host)
            connection.abort()

    def _refuse(self, connection: FrameConnection, error: HoldfastError) -> None:
        """A stranger gets the code and not a word more; who showed a capability or an invite learns
        what is wrong with it, which is all its own, and a peer that is known why it is not let in.
        """
        self.counts[error.code] += 1
        log.info("a connection from %s is refused: %s", connection.host, error.message)
        why = error.message[:REASON_CHARS_MAX] if isinstance(error, _TOLD) else ""
        goodbye = GoodbyeFrame(error.code, why)
        connection.send(FrameKind.GOODBYE, Stream.CONTROL, told(FrameKind.GOODBYE, goodbye))
        connection.close()
        # A stranger that closes nothing has a file descriptor of ours until the time for it is
        # over. A flood of them must not take all: the goodbye of the oldest has long left.
        if len(self._refused) >= BUS_STRANGERS_MAX:
            oldest = next(iter(self._refused))
            del self._refused[oldest]
            oldest.abort()
        self._refused[connection] = None
        connection.closed.add_done_callback(lambda _: self._refused.pop(connection, None))

    async def dial(self, address: str, keys: Collection[PeerKey]) -> PeerLink:
        """A link to the peer with one of these keys, by this address. Raises PeerUnreachable, or
        what one of the two peers has against it.
        """
        connection = FrameConnection(self._opened)
        settled: list[PeerKey] = []
        link: PeerLink | None = None
        try:
            await self._net.dial(address, lambda: connection)
            async with asyncio.timeout(BUS_HELLO_MS_MAX / SECOND_MS):
                greeted = await self._greeter.dial(connection, keys, partial(self._settle, settled))
            link = self._link(connection, greeted, dialled=True, address=address)
            return link
        except TimeoutError:
            raise PeerUnreachable(f"{address} did not say hello in time") from None
        except HoldfastError as error:
            self.counts[error.code] += 1
            if isinstance(error, PeerCopied):
                for key in keys:
                    self._copied(key)
            raise
        finally:
            for peer in settled:
                self._settled.pop(peer).set_result(None)
            if link is None:
                connection.abort()

    def missed(self, keys: Collection[PeerKey]) -> None:
        for key in keys:
            self._missed(key)

    # --- which connection becomes the link -----------------------------------------------------

    def _settle(self, settled: list[PeerKey], peer: PeerKey) -> None:
        """Our dial sends its proof next, unless it is superfluous by now."""
        self._check_faults(peer)
        if peer in self._up or peer in self._settled:
            raise _another()
        self._settled[peer] = self._loop.create_future()
        settled.append(peer)

    async def _let_in(self, begun: int, peer: PeerKey) -> None:
        """Returns when a connection that the peer dialled may become the link, which it does
        before the loop goes on. `begun` is its number.
        """
        self._check_faults(peer)
        while True:
            settled, link = self._settled.get(peer), self._up.get(peer)
            match inbound_verdict(
                self.key,
                peer,
                dial_settled=settled is not None,
                dialled_since=link is not None and link.dialled and link.number > begun,
            ):
                case InboundVerdict.LET_IN:
                    return
                case InboundVerdict.REFUSE:
                    raise _another()
                case InboundVerdict.WAIT:
                    assert settled is not None
                    await asyncio.wait([settled])

    def _link(
        self, connection: FrameConnection, greeted: Greeted, *, dialled: bool, address: str
    ) -> PeerLink:
        if self._is_closing:
            raise BusClosed("this peer is closing its bus")
        old = self._up.get(greeted.peer)
        if old is not None:
            old.drop(_another())
        link = PeerLink(
            connection,
            greeted,
            number=next(self._numbers),
            dialled=dialled,
            address=address,
            owner=self,
            events=self._events,
        )
        self._up[greeted.peer] = link
        self._events.link_up(link)
        link.begin()
        for unit in self._supervisor.units.values():
            if unit.work.came(greeted.peer):
                unit.wake()
        return link

    # --- what links say ------------------------------------------------------------------------

    def link_ended(self, link: PeerLink, error: Exception | None) -> None:
        if self._up.get(link.peer) is link:
            del self._up[link.peer]
        self._events.link_down(link, error)

    def blamed(self, link: PeerLink, error: HoldfastError) -> bool:
        self.counts[error.code] += 1
        left = self._allowance(link.peer).spend(self._ticks_ms())
        if left is not None:
            self._faults[link.peer] = left
        return left is None

    def _check_faults(self, peer: PeerKey) -> None:
        if peer in self._faults and self._faults[peer].spend(self._ticks_ms()) is None:
            raise TooMany("this peer has sent too much that was bad")

    def _allowance(self, peer: PeerKey) -> Allowance:
        return self._faults.get(peer) or Allowance(BUS_FAULTS_MAX, BUS_FAULT_BACK_MS)

    def _ticks_ms(self) -> int:
        return int(self._loop.time() * SECOND_MS)

    # --- units ---------------------------------------------------------------------------------

    def _begin(self, name: str) -> _Unit:
        status = DialStatus(name, self._now_ms, self._changed)
        return TaskUnit(status, Dial(name, self._wanted[name], self, status), self._jitter)


def _another() -> AnotherConnection:
    return AnotherConnection(
        "another connection between these two peers is their link", hint="nothing is to be done"
    )
