"""`holdfast bench`: a table beside the README, and nothing left, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.apps.bench import messages, writes
from holdfast.apps.bench.figures import FIGURES, ONE_TO_BARE
from holdfast.rules.limits import BENCH_S_MAX, BENCH_S_MIN
from support.broker_up import BrokerUp, broker_at
from support.cli import Cli

QUICK = ("bench", "--seconds", str(BENCH_S_MIN))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUp]:
    with broker_at(tmp_path_factory.mktemp("hub") / "store") as up:
        yield up


@pytest.fixture(autouse=True)
def ana(cli: Cli) -> None:
    cli("init", "--peer", "ana", "--mesh", "team")


def meshes_of(hub: BrokerUp) -> list[object]:
    return list(hub.ask(lambda: hub.daemon.broker.store.mesh_list()))


def test_U2_every_figure_is_measured_and_nothing_is_left(
    cli: Cli, hub: BrokerUp, tmp_path: Path
) -> None:
    before = sorted(path.name for path in cli.home.parent.iterdir())
    log = cli("status", "--json").json["log"]
    where = ("--broker", hub.url, "--card", hub.card)
    found = cli(*QUICK, *where, "--json").json
    assert found["problems"] == {}
    assert [one["what"] for one in found["figures"]] == [figure.what for figure in FIGURES]
    assert all(one["here"] > 0 for one in found["figures"] if one["unit"] != "ms")
    told = [one for one in found["figures"] if one["ratio"] is not None]
    assert [one["what"] for one in told] == [one.what for one in FIGURES if one.low is not None]
    assert sorted(path.name for path in cli.home.parent.iterdir()) == before
    assert meshes_of(hub) == []
    assert cli("status", "--json").json["log"] == log, "the home itself is not written to"


def test_U2_a_table_for_people_says_what_the_readme_says(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "ROUNDS", 1)
    done = cli(*QUICK)
    assert done.out.splitlines()[0].split() == ["PART", "WHAT", "HERE", "README", "TO", "README"]
    low, high = ONE_TO_BARE.low, ONE_TO_BARE.high
    assert (f"{low}" if high is None else f"{low} to {high}") in done.out
    assert "no broker was measured; name one: holdfast bench --broker ADDRESS" in done.err


def test_U2_what_cannot_be_measured_is_said_beside_the_rest(cli: Cli, hub: BrokerUp) -> None:
    other = hub.card.replace("hub:", "other:")
    found = cli(*QUICK, "--broker", hub.url, "--card", other, "--json").json
    assert found["problems"]["broker"]["code"] == "zone_not_trusted"
    assert {one["part"] for one in found["figures"]} == {"disk", "home"}
    unpinned = cli(*QUICK, "--broker", hub.url, code=2)
    assert "hint: name its card with --card" in unpinned.err


@pytest.mark.parametrize("part", ["home", "broker"])
def test_U2_ctrl_c_leaves_nothing(
    cli: Cli, hub: BrokerUp, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    begun: list[object] = []

    def interrupted(*given: object) -> float:
        begun.append(meshes_of(hub))
        raise KeyboardInterrupt

    async def interrupted_there(*given: object) -> float:
        return interrupted()

    monkeypatch.setattr(writes, "ROUNDS", 1)
    if part == "home":
        monkeypatch.setattr(writes, "reads", interrupted)
    else:
        monkeypatch.setattr(messages._Sender, "rate", interrupted_there)
    before = sorted(path.name for path in cli.home.parent.iterdir())
    cli(*QUICK, "--broker", hub.url, "--card", hub.card, code=130)
    assert len(begun) == 1
    assert bool(begun[0]) is (part == "broker"), "the mesh was there"
    assert sorted(path.name for path in cli.home.parent.iterdir()) == before
    assert meshes_of(hub) == []


def test_U2_a_bench_has_bounds(cli: Cli) -> None:
    for seconds in (BENCH_S_MIN / 2, BENCH_S_MAX + 1, float("nan")):
        assert cli("bench", "--seconds", str(seconds), code=2).out == ""
