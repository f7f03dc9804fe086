"""A daemon whose clock is a year off: the others say so, nothing is lost, and it goes on by itself
when the clock is set right.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.settings import BusSettings, Settings
from holdfast.rules.limits import DAY_MS
from holdfast.service.clock import SystemClock
from support.cli import Cli
from support.daemon import UpInThread, make_home, running
from support.waiting import until

LISTENING = Settings(bus=BusSettings(listen=["127.0.0.1:0"]))


class WrongClock(SystemClock):
    """The machine's clock, set wrong by so much."""

    off_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.off_ms


def _state(up: UpInThread, key: str) -> Any:
    return up.daemon.api.node.mesh("team").state.get(key)


def _set(up: UpInThread, key: str, value: str) -> None:
    up.daemon.api.node.mesh("team").state.set(key, value)


def _is_linked(up: UpInThread, *peers: str) -> bool:
    links = up.run(lambda: [link.name for link in up.daemon.api.bus.bus.links.all()])  # type: ignore[union-attr]
    return set(peers) <= set(links)


def _problem(up: UpInThread, peer: str) -> str:
    """Why there is no link to a peer."""
    dials = up.run(lambda: up.daemon.api.bus.bus.links.dials())  # type: ignore[union-attr]
    errors = [dial.last_error for dial in dials if dial.name == peer]
    return " ".join(f"{error.code}: {error.message}" for error in errors if error is not None)


@pytest.mark.parametrize("years", [1, -1])
def test_B6_a_clock_a_year_off_is_told_and_nothing_is_lost(years: int, tmp_path: Path) -> None:
    ana, bo, cy = (
        Cli(make_home(tmp_path / name, name, mesh))
        for name, mesh in (("ana", "team"), ("bo", "own"), ("cy", "own"))
    )
    clock = WrongClock()
    with ExitStack() as owner, ExitStack() as others:
        owner.enter_context(running(ana.home, LISTENING))
        cys = others.enter_context(running(cy.home, LISTENING))
        bos = others.enter_context(running(bo.home, LISTENING, clock=clock))
        ana("mesh", "share", "team")
        invite = ana("mesh", "invite", "team", "--uses", "2").out.strip()
        bo("mesh", "join", invite)
        cy("mesh", "join", invite)
        ana("peer", "trust", bo("peer", "card", "--bus").out.strip())
        bo("peer", "trust", ana("peer", "card").out.strip())
        until(lambda: _is_linked(bos, "ana", "cy") and _is_linked(cys, "ana", "bo"))
        owner.close()
        until(lambda: not _is_linked(bos, "ana"))
        assert "spooled" in bo("bus", "send", "ana", "lunch?", "--wait", "1ms").err

        # What holds a link is looked at again when there is a new one.
        clock.off_ms = years * 366 * DAY_MS
        bos.run(lambda: [link.close("closing") for link in bos.daemon.api.bus.bus.links.all()])  # type: ignore[union-attr]
        until(lambda: "clock says" in _problem(cys, "bo") + _problem(bos, "cy"))
        _set(bos, "bo", "with a wrong clock")
        _set(cys, "cy", "with a right one")
        assert not _is_linked(bos, "cy")

        clock.off_ms = 0
        until(lambda: _state(cys, "bo") == "with a wrong clock")
        until(lambda: _state(bos, "cy") == "with a right one")
        with running(ana.home, LISTENING):
            assert ana("bus", "listen", "--count", "1").out == "lunch?\n"
