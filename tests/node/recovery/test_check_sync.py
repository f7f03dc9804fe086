"""The doctor about meshes at brokers: what was refused, by name, and what waits behind it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery.checks import Check
from holdfast.node.recovery.doctor import diagnose
from holdfast.rules.ids import id_text
from holdfast.rules.limits import DOCTOR_ITEMS_MAX
from holdfast.rules.outbox import PARK, Policies, Policy
from holdfast.storage.ports import Transaction
from support.envelopes import MESH
from support.nodes import share


def refused(home: Path, count: int) -> list[str]:
    """A home of which the broker has refused the first changes; returns their ids."""
    with open_node(home, peer="ana", create=True, sync="normal") as node:
        node.create_mesh(MESH)
        mesh = share(node)
        for number in range(count + 1):
            mesh.state.set(f"key-{number}", number)

        def work(tx: Transaction) -> list[str]:
            rows = tx.outbox_list(None, (), 0, count)
            for row in rows:
                dead = {"state": "dead", "attempts": 1, "code": "not_granted", "error": "may not"}
                tx.outbox_put(msgspec.structs.replace(row, **dead, ended_at=9))
            return [id_text(row.id) for row in rows]

        return node._engine.store.write(work)


def sync_checks(home: Path, policies: Policies = PARK) -> list[Check]:
    return [check for check in diagnose(home, policies=policies).checks if check.name == "sync"]


def test_D11_each_refused_item_is_named_with_its_error_and_the_commands_for_it(
    tmp_path: Path,
) -> None:
    home = tmp_path / "h"
    (id,) = refused(home, 1)
    (found,) = [check for check in sync_checks(home) if id in check.message]
    assert found.status == "warn"
    assert "key-0" in found.message
    assert "not_granted, may not" in found.message
    assert f"holdfast outbox retry {id}" in found.fix
    assert f"holdfast outbox drop {id}" in found.fix


def test_D11_of_many_refused_items_the_first_are_named(tmp_path: Path) -> None:
    ids = refused(tmp_path / "h", DOCTOR_ITEMS_MAX + 2)
    said = "\n".join(check.message for check in sync_checks(tmp_path / "h"))
    assert [id in said for id in ids] == [True] * DOCTOR_ITEMS_MAX + [False] * 2
    assert f"{DOCTOR_ITEMS_MAX + 2} changes and messages" in said


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        (PARK, "(park), the default: one bad item stops nothing else"),
        (Policies(Policy.HALT), "everything waits (halt), as the settings say"),
        (
            Policies(by_mesh={MESH: Policy.QUARANTINE}),
            "nothing waits (quarantine), as",
        ),
    ],
)
def test_D12_the_policy_in_force_is_said_and_why(
    tmp_path: Path, policies: Policies, said: str
) -> None:
    refused(tmp_path / "h", 0)
    assert any(said in check.message for check in sync_checks(tmp_path / "h", policies))
