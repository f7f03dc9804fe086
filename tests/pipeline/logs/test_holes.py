"""A log has holes where meshes were deleted; everything else that is missing is still damage."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery.doctor import diagnose
from holdfast.pipeline.logs.log import open_log
from holdfast.rules.errors import StoreCorrupt


def test_S20_the_lake_reads_a_log_with_a_hole_and_still_sees_a_gap(tmp_path: Path) -> None:
    with open_node(tmp_path / "h", peer="ana", create=True) as node:
        node.create_mesh("scratch")
        node.create_mesh("other")
        for number in range(9):
            node.mesh(("scratch", "other", "other")[number % 3]).state.set(f"k{number}", 1)
        dense = open_log(str(node.home))
        assert (dense.place().head, dense.dense) == (9, True)
        node.delete_mesh("scratch")
        log = open_log(str(node.home))
        place = log.place()
        assert not log.dense
        batches = log.batches(place.epoch, place.first, place.head + 1)
        offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert offsets == [2, 3, 5, 6, 8, 9]
        with closing(apsw.Connection(str(node.home / "data.db"))) as con:
            con.execute("DELETE FROM log WHERE offset = 5")
        with pytest.raises(StoreCorrupt, match="gap"):
            list(log.batches(place.epoch, place.first, place.head + 1))
        assert any("the log has a gap: 1" in str(check) for check in diagnose(node.home).checks)
