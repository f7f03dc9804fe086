"""The connection to a broker that is not honest, or not of our kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from holdfast.node.sync.manager import SyncManager
from holdfast.node.sync.status import BrokerStatus
from holdfast.protocol.frames import Entries, encode_frame, read_from_node
from holdfast.rules.broker_sync import SyncState
from support.envelopes import MESH
from support.nodes import Nodes
from support.source import HandClock
from support.sync_wire import CARD, Brokerage, BrokerEnd, Laptop

Script = Callable[[ServerConnection, BrokerEnd], Awaitable[None]]
PATIENCE_S = 30


@pytest.fixture
def ana(tmp_path: Path) -> Laptop:
    clock = HandClock()
    broker = Brokerage(tmp_path / "broker", clock)
    laptop = Laptop(Nodes("memory", tmp_path, clock).open("ana"), broker, tmp_path / "ana")
    laptop.share()
    return laptop


def meets(ana: Laptop, script: Script, until: Callable[[BrokerStatus], bool]) -> BrokerStatus:
    """How the node stands once it has met a broker that does as scripted."""

    async def serve_one(line: ServerConnection) -> None:
        await script(line, ana.broker.talk())

    async def main() -> BrokerStatus:
        async with serve(serve_one, "127.0.0.1", 0) as up:
            url = f"http://127.0.0.1:{up.sockets[0].getsockname()[1]}"
            ana.change(broker_url=url, broker_card=CARD)
            sync_manager = SyncManager(ana.engine, ana.trust, chance=lambda: 0.0)
            await sync_manager.start()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while not until(sync_manager.status()[0]):
                        await asyncio.sleep(0.005)
                return sync_manager.status()[0]
            finally:
                await sync_manager.stop()

    return asyncio.run(main())


def failed(status: BrokerStatus) -> bool:
    return status.last_error is not None


async def greet(line: ServerConnection, talk: BrokerEnd) -> None:
    """As an honest broker does it."""
    await line.send(encode_frame(talk.opening()))
    for frame in talk.on_frame(read_from_node(await line.recv(decode=False))):
        await line.send(encode_frame(frame))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (4010, "feature_unavailable"),
        (4011, "feature_param_invalid"),
        (4012, "feature_param_below_floor"),
        (4001, "zone_not_trusted"),
        (4013, "another_connection"),
    ],
)
def test_D9_a_broker_that_hangs_up_says_why_by_its_code(
    ana: Laptop, code: int, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(line: ServerConnection, talk: BrokerEnd) -> None:
        await line.send(encode_frame(talk.opening()))
        await line.recv()
        await line.close(code, "we do not suit each other")

    status = meets(ana, script, failed)
    assert status.state is SyncState.STOPPED
    assert status.last_error is not None
    assert status.last_error.code == error
    assert ("client_message_id_dedupe" in caplog.text) == (code in (4010, 4011, 4012))


def test_D14_garbage_ends_the_connection_and_it_is_tried_again(ana: Laptop) -> None:
    async def script(line: ServerConnection, talk: BrokerEnd) -> None:
        await greet(line, talk)
        await line.send(b"\xc1garbage")
        await line.wait_closed()

    status = meets(ana, script, lambda status: status.attempts >= 1 and status.connections >= 2)
    assert status.last_error is not None
    assert status.last_error.code == "bad_answer"


def test_D14_a_broker_that_says_something_else_first_is_no_broker(ana: Laptop) -> None:
    async def script(line: ServerConnection, talk: BrokerEnd) -> None:
        await line.send(encode_frame(Entries(MESH, 1, 0, 0, [], 0)))
        await line.wait_closed()

    status = meets(ana, script, failed)
    assert status.state is SyncState.RECONNECTING
    assert status.last_error is not None
    assert "does not begin as a broker does" in status.last_error.message


def test_D6_a_broker_that_leaves_gaps_for_ever_is_left(ana: Laptop) -> None:
    async def script(line: ServerConnection, talk: BrokerEnd) -> None:
        await greet(line, talk)
        for _ in range(100):
            await line.send(encode_frame(Entries(MESH, 1, 5, 9, [], 9)))
        await line.wait_closed()

    status = meets(ana, script, failed)
    assert status.last_error is not None
    assert status.last_error.code == "bad_answer"
    assert ana.row.broker_seq == 0


def test_D15_frames_of_a_mesh_that_is_not_shared_there_are_passed_over(ana: Laptop) -> None:
    async def script(line: ServerConnection, talk: BrokerEnd) -> None:
        await greet(line, talk)
        await line.send(encode_frame(Entries("other", 1, 0, 9, [], 9)))
        await line.send(encode_frame(Entries(MESH, 1, 0, 3, [], 3)))
        await line.wait_closed()

    status = meets(ana, script, lambda status: status.meshes[0].cursor == 3)
    assert status.last_error is None
