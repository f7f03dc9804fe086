"""The load of delivery that runs for hours elsewhere, for some seconds here; and what it would say
if something was wrong. See tools/load.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.project import ROOT
from tools.loading.usage import growth
from tools.loading.verdict import judge

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to look into"),
]

KEYS = {"ana": "a" * 64, "ben": "b" * 64}
"""By name."""


HAPPENINGS = ("broker killed", "node killed", "offline", "messages swept")


def test_R5_a_load_on_a_broker_and_its_nodes_loses_nothing_and_doubles_nothing() -> None:
    """A few seconds are enough for everything to happen, and on a busy machine they are not: then
    there is a longer load.
    """
    missing = set(HAPPENINGS)
    for minutes in ("0.15", "0.5", "1.5"):
        done = subprocess.run(
            [sys.executable, str(ROOT / "tools" / "load.py"), "--minutes", minutes, "--every", "3"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        assert "nothing lost, nothing twice" in done.stdout
        missing -= {what for what in HAPPENINGS if what in done.stdout}
        if not missing:
            return
    pytest.fail(f"these loads had none of {missing}")


# --- what it would say -------------------------------------------------------------------------


def _journals(folder: Path, **lines: list[str]) -> list[str]:
    """What is wrong with these; the whole story is that ana sends ben a message, and sets a key."""
    told = {
        "ana.log": ["1 m1 ana message.send topic/news", "2 c1 ana state.set k"],
        "ana.acked": ["m1", "c1"],
        "ben.log": ["1 m1 ana message.send topic/news", "2 c1 ana state.set k"],
        "ben.inbox": ["1 m1"],
    }
    for name, said in (
        told | {name.replace("_", "."): said for name, said in lines.items()}
    ).items():
        (folder / name).write_text("".join(f"{line}\n" for line in said))
    return judge(folder, KEYS).problems


def test_R5_the_judge_of_a_load_is_content_when_everything_is_there_once(tmp_path: Path) -> None:
    assert _journals(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"ana_acked": ["m1", "c1", "c2"]}, "ana got an acknowledgement of, and has not 1: c2"),
        ({"ben_log": ["1 m1 ana message.send topic/news"]}, "ben has never got 1: c1"),
        ({"ben_inbox": []}, "the inbox of ben lacks 1: m1"),
        ({"ben_inbox": ["1 m1", "2 m1"]}, "the inbox of ben had twice 1: m1"),
        ({"ben_log": ["1 m1 ana message.send topic/news", "3 c1 ana state.set k"]}, "3 after 1"),
        ({"ben_settled": ["q9 asked"]}, "finished, and never sent: 1: q9"),
        ({"ana_settled": ["q1 asked", "q1 done", "q1 done"]}, "finished twice: 1: q1"),
    ],
)
def test_R5_the_judge_of_a_load_sees_what_is_lost_and_what_is_there_twice(
    tmp_path: Path, said: dict[str, list[str]], words: str
) -> None:
    assert words in "; ".join(_journals(tmp_path, **said))


def test_R5_a_message_of_the_queue_that_nobody_finished_is_seen(tmp_path: Path) -> None:
    log = ["1 q1 ana message.send queue/work"]
    found = _journals(tmp_path, ana_log=log, ana_acked=["q1"], ben_log=[], ben_inbox=[])
    assert found == ["never finished 1: q1"]


def test_R5_what_grows_from_the_middle_third_to_the_last_is_a_breach() -> None:
    level = [{"anon": 40e6, "messages": 500.0}] * 30
    assert growth("hub", level) == []
    leak = [{"anon": 40e6 + 2e6 * at, "messages": 500.0 + 500 * at} for at in range(30)]
    assert growth("hub", leak) == [
        "hub: anon rose from 69,000,000 to 89,000,000",
        "hub: messages rose from 7,750 to 12,750",
    ]
    assert "too few" in growth("hub", level[:5])[0]
