"""A voter that lies fills no log."""

from __future__ import annotations

import logging

import pytest

from holdfast.node.quorum.embedded.alarm_log import AlarmLog
from holdfast.rules.limits import QUORUM_ALARM_MS, QUORUM_ALARMS_MAX
from holdfast.rules.quorum.raft.effects import Alarm


def test_Q13_alarms_of_one_kind_are_told_a_few_times_and_then_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1
    alarms = AlarmLog(lambda: now)
    with caplog.at_level(logging.WARNING, "holdfast"):
        for member in range(1000):
            alarms.tell("team", Alarm("removed_sender", member))
        assert len(caplog.messages) == QUORUM_ALARMS_MAX
        alarms.tell("team", Alarm("term_leap", 2))
        alarms.tell("crew", Alarm("removed_sender", 2))
        assert len(caplog.messages) == QUORUM_ALARMS_MAX + 2, "others are not kept silent by it"
        now += QUORUM_ALARM_MS
        for _ in range(2):
            alarms.tell("team", Alarm("removed_sender", 7))
    unsaid = 1000 - QUORUM_ALARMS_MAX
    assert caplog.messages[-1] == (
        "quorum of team: removed_sender (member 7), "
        f"and {unsaid} times since the last line of this kind"
    )
    assert len(caplog.messages) == QUORUM_ALARMS_MAX + 3
