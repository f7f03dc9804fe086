"""The other side of the ratios writes what ours writes, and keeps it."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.service.clock import SystemClock
from holdfast.storage.sqlite.yardstick.bare_writes import BareWrites


def test_U2_bare_rows_are_those_of_a_write_of_ours(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "home", peer="ana", create=True) as node:
        node.create_mesh("team").state.set("ours", {"a": 1})
    writes, new_id = BareWrites(tmp_path / "home" / "data.db", sync="full"), SystemClock().new_id
    writes.commit([(new_id(), "one"), (new_id(), "two")])
    writes.commit([(new_id(), "three")])
    writes.close()
    with holdfast.open(tmp_path / "home") as node:
        team = node.mesh("team")
        assert team.state.get("three") == {"a": 1}, "a reader of ours understands them"
        assert sorted(row.key for row in team.state.list()) == ["one", "three", "two"]
        assert team.clock().lamport == 3
        assert [entry.op for entry in node.log.range()] == ["state.set"] * 3
