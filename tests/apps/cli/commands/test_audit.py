"""`holdfast audit`: what people see of audit streams."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.rules.arrivals import read_arrivals
from support.cli import Cli
from support.nodes import Nodes, team
from support.source import HandClock


def test_Q14_events_are_appended_listed_and_verified(cli: Cli) -> None:
    done = cli("audit", "append", "activityLog", '{"did":"deploy"}', "--json-value")
    assert done.err == "appended to 'activityLog' in team at 1@ana\n"
    cli("audit", "append", "activityLog", "plain")
    (one, two) = cli("audit", "list", "activityLog", "--json").json
    assert (one["payload"], two["payload"], two["previous"]) == (
        {"did": "deploy"},
        "plain",
        one["hash"],
    )
    listed = cli("audit", "list", "activityLog", "--limit", "1", "--json").json
    assert [event["seq"] for event in listed] == [1]
    (chain,) = cli("audit", "streams", "--json").json
    assert (chain["origin"], chain["last"], chain["gap"]) == ("ana", 2, False)
    assert "whole" in cli("audit", "verify").out
    assert "nothing is in" in cli("audit", "list", "other").err


def test_Q14_verify_exits_with_5_for_a_gap(cli: Cli, tmp_path: Path) -> None:
    bob = Nodes("memory", tmp_path, HandClock()).open("bob")
    for number in range(3):
        team(bob).audit.append("s", number)
    first, _, third = [entry.raw for entry in bob.log.range()]
    assert len(read_arrivals([first])) == 1
    with holdfast.open(cli.home) as node:
        node.apply([first, third])
    gap = cli("audit", "verify", code=5)
    assert "missing: 2" in gap.out
    assert "lacks 1 events" in gap.err
