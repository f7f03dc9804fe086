"""The doctor between zones: what stands in the way of links, keys and tokens, and what to do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery import check_links
from holdfast.node.recovery.checks import Check
from holdfast.node.recovery.doctor import diagnose
from holdfast.rules import limits
from holdfast.rules.filters import Filter
from holdfast.rules.limits import DAY_MS, MIB
from holdfast.rules.rows import LinkRow, QuarantineRow, TokenRow, ZoneKey, ZoneRow
from holdfast.service.clock import SystemClock
from holdfast.storage.files.ballast import Ballast
from holdfast.storage.ports import Transaction
from support.daemon import make_home, running

NOW = SystemClock().now_ms()
KEY, OTHER_KEY = bytes(31) + b"\x01", bytes(31) + b"\x02"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def store(home: Path, *works: Callable[[Transaction], object]) -> None:
    with open_node(home, sync="normal") as node:
        for work in works:
            node._engine.write("test", work)


def found(home: Path, name: str) -> list[Check]:
    return [check for check in diagnose(home).checks if check.name == name]


def zone(*ends: int | None, blocked: bool = False) -> Callable[[Transaction], object]:
    keys = tuple(
        ZoneKey(key=key, added_at=NOW, expires_at=end)
        for key, end in zip((KEY, OTHER_KEY), ends, strict=False)
    )
    row = ZoneRow(name="ben", keys=keys, added_at=NOW, blocked_at=NOW if blocked else None)
    return lambda tx: tx.zone_put(row)


def link(
    *, added_at: int = NOW, paused: bool = False, url: str = "https://127.0.0.1:9"
) -> Callable[[Transaction], object]:
    row = LinkRow(
        name="from-ben",
        url=url,
        zone="ben",
        filter=Filter(origins=("ben",)),
        added_at=added_at,
        paused=paused,
    )
    return lambda tx: tx.link_put(row)


def token(end: int | None) -> Callable[[Transaction], object]:
    row = TokenRow(name="spark", digest=bytes(32), scope="read", created_at=NOW, expires_at=end)
    return lambda tx: tx.token_put(row)


def set_aside(tx: Transaction) -> None:
    tx.quarantine_add(
        QuarantineRow(
            link="from-ben", epoch=1, offset=7, code="bad_stamp", message="", raw=b"", found_at=NOW
        )
    )


def test_Z8_a_node_without_neighbours_hears_nothing_of_them(home: Path) -> None:
    names = {check.name for check in diagnose(home).checks}
    assert not names & {"links", "quarantine", "trust", "tokens", "ballast"}


def test_Z8_zones_and_tokens_in_order_are_ok(home: Path) -> None:
    store(home, zone(None), link(), token(NOW + 100 * DAY_MS))
    assert [check.status for check in found(home, "trust")] == ["ok"]
    assert [check.status for check in found(home, "links")] == ["ok"]
    assert "no daemon runs" in found(home, "links")[0].message
    assert found(home, "tokens") == []


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((NOW - 1,), "the key of zone ben has expired"),
        ((NOW - 1, NOW - 2), "the key of zone ben has expired"),
        ((NOW + 3 * DAY_MS + 3_600_000,), "the key of zone ben expires in 3 days"),
        ((NOW - 1, None), "has a key that has expired beside one that holds"),
    ],
)
def test_Z8_keys_that_end_are_told_before_and_after(
    home: Path, ends: tuple[int | None, ...], said: str
) -> None:
    store(home, zone(*ends))
    first = found(home, "trust")[0]
    assert first.status == "warn"
    assert said in first.message
    assert first.fix.startswith("holdfast peer")


@pytest.mark.parametrize(
    ("end", "said"),
    [(NOW - 1, "has expired"), (NOW + 5 * DAY_MS + 3_600_000, "expires in 5 days")],
    ids=["past", "near"],  # not the times themselves: each process has its own
)
def test_Z8_a_token_that_ends_is_told(home: Path, end: int, said: str) -> None:
    store(home, token(end))
    [check] = found(home, "tokens")
    assert check.status == "warn"
    assert f"the token spark {said}" in check.message
    assert "holdfast token add" in check.fix


@pytest.mark.parametrize(
    ("works", "status", "said"),
    [
        ((link(),), "fail", "which is not trusted"),
        ((zone(), link()), "fail", "which is not trusted"),
        ((zone(None, blocked=True), link()), "warn", "which is blocked"),
        ((zone(NOW - 1), link()), "fail", "whose keys have all expired"),
        ((zone(None), link(added_at=NOW - 3 * DAY_MS)), "warn", "has brought nothing in 3 days"),
    ],
)
def test_Z6_a_link_that_cannot_work_is_told_with_its_reason(
    home: Path, works: tuple[Callable[[Transaction], object], ...], status: str, said: str
) -> None:
    store(home, *works)
    first = found(home, "links")[0]
    assert first.status == status
    assert said in first.message
    assert first.fix


def test_Z6_a_link_that_rests_is_no_trouble(home: Path) -> None:
    store(home, zone(None), link(added_at=NOW - 3 * DAY_MS, paused=True))
    [check] = found(home, "links")
    assert check.status == "ok"
    assert "from-ben rests" in check.message


def test_Z6_what_a_link_set_aside_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(home, zone(None), link(), set_aside, set_aside)
    [check] = found(home, "quarantine")
    assert check.status == "warn"
    assert "2 refused entries" in check.message
    assert check.fix == "holdfast link quarantine from-ben"
    monkeypatch.setattr(limits, "QUARANTINE_ROWS_MAX", 2)
    [check] = found(home, "quarantine")
    assert check.status == "fail"


def test_Z5_a_reader_that_is_about_to_be_given_up_is_told(home: Path) -> None:
    with open_node(home, sync="normal") as node:
        node.log.add_consumer("slow", retire_lag=10)
        for number in range(8):
            node.mesh("team").facts.append("s", "p", number)
    assert [check.status for check in found(home, "consumers")] == ["ok"]
    with open_node(home, sync="normal") as node:
        node.mesh("team").facts.append("s", "p", 9)
    first = found(home, "consumers")[0]
    assert first.status == "warn"
    assert "slow is retired at 10 waiting entries and has 9" in first.message


@pytest.mark.parametrize(("level", "status"), [("ok", "ok"), ("high", "warn"), ("full", "fail")])
def test_Z7_the_doctor_says_how_full_the_home_is(
    home: Path, monkeypatch: pytest.MonkeyPatch, level: str, status: str
) -> None:
    fills = {"ok": 0.1, "high": 0.85, "full": 0.97}
    used = int(fills[level] * 10_000 * MIB)
    monkeypatch.setattr(check_links, "measure", lambda paths: (used, 10_000 * MIB - used))
    [check] = found(home, "fill")
    assert check.status == status
    assert f"{fills[level]:.0%} of what it could" in check.message


def test_Z7_a_ballast_is_missed_only_where_a_daemon_should_have_laid_it(home: Path) -> None:
    assert found(home, "ballast") == []
    with running(home):
        [check] = found(home, "ballast")
        assert check.status == "ok"
        assert "16 MiB" in check.message
        Ballast(home).release()
        [check] = found(home, "ballast")
        assert check.status == "warn"


def test_Z6_a_running_daemon_is_asked_how_its_links_stand(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        store(home, zone(None), link(url=url))
        with running(home):
            for _ in range(2):  # who comes again has failed before
                nobody.accept()[0].close()
            checks = found(home, "links")
    assert any(check.status == "warn" and "link from-ben is" in check.message for check in checks)
    assert any("1 of them are at work" in check.message for check in checks)
