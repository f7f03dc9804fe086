"""`holdfast restore --snapshot`: a new node from what a lake knows."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.node.snapshots.manifest import signer_of
from support.cli import Cli
from support.plain_snapshot import plain_snapshot


def _snapshot(cli: Cli, folder: Path, *, signed: bool = False) -> None:
    cli("state", "set", "k", "v")
    cli("file", "share", "big", "--from", "-", stdin=b"x" * 70_000)
    with holdfast.open(cli.home) as node:
        logs = {"ana": list(node.log.range())}
    plain_snapshot(folder, logs, signer=signer_of(cli.home) if signed else None)


def test_P6_a_node_begins_from_a_snapshot(cli: Cli, tmp_path: Path) -> None:
    _snapshot(cli, tmp_path / "snap", signed=True)
    card = cli("peer", "card").out.strip()
    new = Cli(tmp_path / "new")
    done = new(
        "restore", "--snapshot", str(tmp_path / "snap"), "--peer", "bob", "--signed-by", card
    )
    assert done.out == f"{new.home}\n"
    assert "bob has 2 envelopes of team" in done.err
    assert f"signed by {card}" in done.err
    assert "the content of 1 objects" in done.err
    assert new("state", "get", "k").out == "v\n"
    again = new("restore", "--snapshot", str(tmp_path / "snap"), "--json")
    assert again.json["logs"] == {"ana": [1, 2]}
    assert (again.json["checked"], again.json["missing"]) == (False, 1)
    assert '"unchecked"' in again.err


def test_P6_a_snapshot_of_nobody_is_taken_and_said_to_be_so(cli: Cli, tmp_path: Path) -> None:
    _snapshot(cli, tmp_path / "snap")
    new = Cli(tmp_path / "new")
    words = ("restore", "--snapshot", str(tmp_path / "snap"), "--peer", "bob")
    card = cli("peer", "card").out.strip()
    refused = new(*words, "--signed-by", card, "--json", code=None)
    assert refused.error["code"] == "zone_not_trusted"
    assert not new.home.exists()
    assert "it is not signed" in new(*words).err


def test_P6_backup_and_snapshot_are_not_mixed_up(cli: Cli, tmp_path: Path) -> None:
    _snapshot(cli, tmp_path / "snap")
    new = Cli(tmp_path / "new")
    snap = str(tmp_path / "snap")
    for words in (
        ("restore",),
        ("restore", snap, "--snapshot", snap),
        ("restore", "--snapshot", snap, "--force"),
        ("restore", snap, "--peer", "bob"),
        ("restore", "--snapshot", snap),
    ):
        assert new(*words, "--json", code=2).error["code"]
    cli("backup", str(tmp_path / "backup"))
    backup = str(tmp_path / "backup")
    said = new("restore", "--snapshot", backup, "--peer", "bob", "--json", code=2).error
    assert said["code"] == "unsupported_protocol"
    assert not new.home.exists()
