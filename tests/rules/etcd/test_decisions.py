"""What an etcd's answers mean, without an etcd."""

from __future__ import annotations

import pytest

from holdfast.rules.errors import (
    BadAnswer,
    BadKey,
    BodyTooLarge,
    Broken,
    DiskFull,
    EtcdDenied,
    EtcdTooOld,
    Refused,
    TooMany,
)
from holdfast.rules.etcd.endpoints import Rotation, pause_ms
from holdfast.rules.etcd.faults import Fault, code_of_cancel, error_of
from holdfast.rules.etcd.keys import OrderKeys
from holdfast.rules.etcd.versions import check_version
from holdfast.rules.limits import ETCD_PAUSE_MS_MAX, ETCD_PAUSE_MS_MIN


def test_Q3_each_fault_is_an_error_of_the_family_that_fits() -> None:
    kinds = {fault: type(error_of(fault, "why", "a:1")) for fault in Fault}
    assert kinds[Fault.NO_SPACE] is DiskFull
    assert kinds[Fault.TOO_LARGE] is BodyTooLarge
    assert kinds[Fault.BUSY] is TooMany
    assert kinds[Fault.TOKEN] is kinds[Fault.DENIED] is EtcdDenied
    assert issubclass(kinds[Fault.CORRUPT], Broken)
    assert issubclass(kinds[Fault.FUTURE], Broken)
    rest = set(Fault) - {Fault.CORRUPT, Fault.FUTURE}
    assert all(issubclass(kinds[fault], Refused) for fault in rest)


def test_Q3_a_cancelled_watch_tells_by_its_text_whether_a_token_helps() -> None:
    assert code_of_cancel("rpc error: code = PermissionDenied desc = etcdserver: permission denied")
    assert code_of_cancel("etcdserver: permission denied") == 16
    assert code_of_cancel("etcdserver: invalid auth token") == 16
    assert code_of_cancel("etcdserver: no leader") == 14


def test_Q3_failures_of_many_calls_move_on_by_one_member() -> None:
    rotation = Rotation(3)
    for _ in range(10):
        rotation = rotation.after_failure(0)
    assert rotation.current == 1
    assert Rotation(3, 2).after_failure(0).current == 2  # it was asked before others moved on
    assert rotation.after_failure(1).after_failure(2).current == 0
    assert Rotation(1).after_failure(0).current == 0


def test_Q3_a_call_waits_only_when_every_member_has_failed_it() -> None:
    pauses = [pause_ms(failures, 3) for failures in range(1, 10)]
    assert pauses == [0, 0, ETCD_PAUSE_MS_MIN, 0, 0, 40, 0, 0, 80]
    assert pause_ms(3 * 1000, 3) == ETCD_PAUSE_MS_MAX


@pytest.mark.parametrize(
    "version", ["3.5.28", "3.5.101", "3.6.9", "3.6.10", "3.7.0", "3.7.0-rc.1", "3.12.0"]
)
def test_Q3_releases_without_known_losses_are_accepted(version: str) -> None:
    check_version(version, "a:1")


@pytest.mark.parametrize(
    "version", ["3.5.1", "3.5.27", "3.6.8", "3.6.0", "3.6.9-rc.0", "3.4.99", "2.3.8", "4.0.0"]
)
def test_Q3_releases_that_lose_writes_or_read_old_values_are_refused(version: str) -> None:
    with pytest.raises(EtcdTooOld) as refused:
        check_version(version, "a:1")
    assert version in refused.value.message
    assert "3.5.28" in refused.value.hint


@pytest.mark.parametrize(
    "version", ["", "3.5", "three", "3.5.28.1", "\u0663.5.28", "3.5." + "9" * 99]
)
def test_Q3_whoever_does_not_say_its_version_is_not_believed(version: str) -> None:
    with pytest.raises(BadAnswer):
        check_version(version, "a:1")


def test_Q3_keys_of_scopes_do_not_meet() -> None:
    keys, longer = OrderKeys("team"), OrderKeys("team2")
    assert keys.entries < keys.entry(b"\xff" * 16) < keys.entries_end <= keys.last
    assert keys.last < keys.watched_end
    for other in (longer.entry(bytes(16)), longer.last, keys.floor, keys.epoch, keys.incarnation):
        assert not keys.entries <= other < keys.watched_end
    id = bytes(range(16))
    assert keys.id_of(keys.entry(id)) == id
    for wrong in (b"", b"x", keys.last, keys.entries + b"F" * 32, keys.entries + b"zz" * 16):
        assert keys.id_of(wrong) is None
    for scope in ("", "a/b", "../x", "a" * 65, "ä", ".x"):
        with pytest.raises(BadKey):
            OrderKeys(scope)
