"""A home is created, opened, migrated and closed on a disk that fails at every call in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.node.core import operations
from holdfast.node.home.opening import open_home
from holdfast.node.library.node import Node, open_node
from holdfast.rules.errors import Unknown
from holdfast.rules.ids import id_text
from holdfast.rules.limits import DAY_MS
from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.every_call_fails import SweepFailure
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.simulate.world.invariants import audit
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect
from holdfast.storage.tickets import Ticket
from support.envelopes import MESH, make_id
from support.faults import (
    HOME,
    ID,
    PEER,
    Operation,
    examine,
    expect_no_failures,
    is_typed,
    new_node,
    sweep_life,
    sweep_operation,
)
from support.nodes import team
from support.source import START_MS, HandClock
from support.used_homes import OTHER, disputed, some_rows

pytestmark = [pytest.mark.faults, pytest.mark.sim]

# --- groups --------------------------------------------------------------------------------------


class Group:
    """Three writes that wait together; the one in the middle is refused for its own fault."""

    IDS = (ID, id_text(make_id(1_000_001)), id_text(make_id(1_000_002)))
    KEYS = ("first", "never-set", "third")

    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def __call__(self, node: Node) -> None:
        ctx, writer = node._engine.ctx, node._opened.store.writer
        changes = [
            operations.state_set(ctx, MESH, "first", 1, self.IDS[0]),
            operations.state_delete(ctx, MESH, "never-set", self.IDS[1]),
            operations.state_set(ctx, MESH, "third", 3, self.IDS[2]),
        ]
        tickets = [Ticket(change, lambda group: None) for change in changes]
        for ticket in tickets:
            writer.enqueue(ticket)
        while writer.run_group():
            pass
        self.errors = [ticket.error for ticket in tickets]
        given = [error for error in self.errors if error is not None]
        assert len(set(map(id, given))) == len(given), "each caller needs an error of its own"
        first = self.errors[0]
        if first is not None:
            raise first

    def happened(self, node: Node) -> bool:
        there = [team(node).state.get(key) is not None for key in self.KEYS]
        for key, error, seen in zip(self.KEYS, self.errors, there, strict=True):
            assert is_typed(error), f"{key} was answered {error!r}"
            assert seen or error is not None, f"{key} was acknowledged and is not there"
            assert not seen or error is None or isinstance(error, Unknown), f"{key} was refused"
        return there[0]


def test_S3_each_write_of_a_group_is_answered_for_what_became_of_it() -> None:
    group = Group()
    operation = Operation(name="group", before=some_rows, act=group, happened=group.happened)
    expect_no_failures(sweep_operation(operation))


def _together(node: Node) -> None:
    """A batch of three changes, of which the second names the stamp that it expects."""
    with team(node).batch(id="together") as batch:
        batch.state.set("together", 1, id=ID)
        batch.memory.set("together", 2, expect="absent")
        batch.files.share("together.bin", OTHER)


def _all_there(node: Node) -> bool:
    mesh = team(node)
    there = {
        mesh.state.get("together") is not None,
        mesh.memory.get("together") is not None,
        any(file.path == "together.bin" for file in mesh.files.list(scope="self")),
    }
    assert len(there) == 1, "a part of the batch was written"
    return there.pop()


def test_S3_a_batch_is_written_as_a_whole_or_not_at_all_whatever_call_fails() -> None:
    operation = Operation(name="batch", before=some_rows, act=_together, happened=_all_there)
    expect_no_failures(sweep_operation(operation))


# --- opening, closing, creating, migrating -------------------------------------------------------


def created(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
    node = Node(open_home(directory / HOME, peer=PEER, create=True, vfs=vfs, source=HandClock()))
    acknowledge("home")
    node.close()


def check_created(
    directory: Path, acknowledged: Sequence[object], error: BaseException | None
) -> None:
    assert is_typed(error), f"the caller got {error!r}"
    home = directory / HOME
    if acknowledged:
        assert examine(home) == []
    peer = None if acknowledged else PEER
    with open_node(home, peer=peer, create=not acknowledged, source=HandClock(seed=1)) as node:
        assert node.peer == PEER
        node.create_mesh(MESH).state.set("first", 1)
        assert audit(node) == []


def test_S1_a_home_whose_creation_was_cut_short_is_finished_by_the_next_one() -> None:
    expect_none_of(*sweep_life(created, check_created))


def expect_none_of(runs: int, failures: list[SweepFailure]) -> None:
    assert not failures, "\n".join([f"{len(failures)} failures", *map(str, failures[:8])])
    assert runs > 50


def used_home(directory: Path) -> None:
    """A home with everything in it, and with blobs for the last sweep to remove."""
    with new_node(directory / HOME) as node:
        disputed(node)
        node._opened._last_sweep = lambda: None  # type: ignore[method-assign]
        team(node).files.delete("old.bin")


def crashed_home(directory: Path) -> None:
    """The same, after a kill: the WAL is full, and nobody said goodbye."""
    used_home(directory)
    with FaultyDisk() as disk:
        node = Node(open_home(directory / HOME, vfs=disk.name, source=HandClock(seed=2)))
        team(node).state.set("late", 1)
        team(node).files.share("late.bin", OTHER)
        disk.kill()
        node._opened.abandon()


def opened_and_closed(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
    node = Node(open_home(directory / HOME, vfs=vfs, source=_later()))
    acknowledge("opened")
    try:
        assert team(node).state.get("old") == "bob's"
    finally:
        node.close()
    acknowledge("closed")


def _later() -> HandClock:
    return HandClock(START_MS + 10 * DAY_MS, seed=3)


def check_opened(
    directory: Path, acknowledged: Sequence[object], error: BaseException | None
) -> None:
    assert is_typed(error), f"the caller got {error!r}"
    assert "opened" not in acknowledged or "closed" in acknowledged or error is not None
    assert examine(directory / HOME) == []
    with Node(open_home(directory / HOME, source=_later())) as node:
        assert team(node).state.get("old") == "bob's"
        assert audit(node) == []


@pytest.mark.parametrize("prepare", [used_home, crashed_home])
def test_S12_opening_and_closing_survive_a_failure_of_every_call(
    prepare: Callable[[Path], None],
) -> None:
    expect_none_of(*sweep_life(opened_and_closed, check_opened, prepare=prepare))


@pytest.mark.parametrize("version", [2, migrations.LATEST - 1])
def test_S11_a_migration_that_fails_at_any_call_goes_on_at_the_next_start(version: int) -> None:
    def old_home(directory: Path) -> None:
        with new_node(directory / HOME) as node:
            team(node).state.set("old", "bob's")
        connection = connect(HomePaths(directory / HOME).database)
        migrations.rollback(connection, version)
        connection.close()

    def migrated(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
        node = Node(open_home(directory / HOME, peer=PEER, vfs=vfs, source=_later()))
        acknowledge("opened")
        node.close()

    def check(directory: Path, acknowledged: Sequence[object], error: BaseException | None) -> None:
        assert is_typed(error), f"the caller got {error!r}"
        with Node(open_home(directory / HOME, peer=PEER, source=_later())) as node:
            assert team(node).state.get("old") == "bob's"
            team(node).tasks.create("works")
            assert audit(node) == []
        assert examine(directory / HOME) == []

    expect_none_of(*sweep_life(migrated, check, prepare=old_home))
