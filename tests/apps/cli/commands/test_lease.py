"""`holdfast lease run`: a command for as long as a lease is held, and not longer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from holdfast.rules.quorum.fence import parse_order
from support.cli import Cli
from support.quorum_daemon import QuorumUp, quorum_daemon
from support.waiting import until

SHOW = 'echo "$HOLDFAST_LEASE $HOLDFAST_MESH $HOLDFAST_FENCE" > "$OUT"'
WAITS = 'echo on > "$OUT"; sleep 600'
STUBBORN = "trap '' TERM; " + 'echo on > "$OUT"; while :; do sleep 0.05; done'


@pytest.fixture
def up(tmp_path: Path) -> Iterator[QuorumUp]:
    with quorum_daemon(tmp_path) as made:
        yield made


class LeaseCli(Cli):
    """The command, whose command writes into a file."""

    def __init__(self, home: Path, out: Path) -> None:
        super().__init__(home)
        self.out = out

    def words(self, script: str, *options: str) -> tuple[str, ...]:
        return ("lease", "run", "deploy", *options, "--", "sh", "-c", script)

    def run(self, script: str, *options: str, code: int = 0) -> str:
        """In this process; returns what was said."""
        return self(*self.words(script, *options), code=code, env={"OUT": str(self.out)}).err

    @property
    def is_on(self) -> bool:
        return self.out.exists() and self.out.read_text() == "on\n"

    @contextmanager
    def when_on(self, work: Callable[[], object]) -> Iterator[None]:
        """Does something as soon as the command runs."""

        def wait() -> None:
            until(lambda: self.is_on)
            work()

        thread = threading.Thread(target=wait)
        thread.start()
        yield
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def cli(up: QuorumUp, tmp_path: Path) -> LeaseCli:
    return LeaseCli(up.home, tmp_path / "out")


def test_U2_Q4_a_command_runs_under_a_fence_that_grows_and_gives_the_lease_back(
    cli: LeaseCli,
) -> None:
    fences = []
    for _ in range(2):
        said = cli.run(SHOW)
        name, mesh, fence = cli.out.read_text().split()
        assert (name, mesh) == ("deploy", "team")
        assert f"holding deploy under the fence {fence}" in said
        fences.append(fence)
    assert parse_order(fences[0]) < parse_order(fences[1])
    assert fences == sorted(fences), "fences sort as text"
    assert "nobody holds a lease" in cli("lease", "list").err
    cli.run("exit 9", code=9)
    cli("lease", "run", "deploy", "--", "no-such-command", code=2)
    cli("lease", "show", "deploy", code=4)
    cli.run("true", "--ttl", "1ms", code=2)
    # A write that shows the fence of a lease that has ended is refused.
    put = ("entity", "put", "mission", "m1", "title=Late", "--fence", f"deploy@{fences[1]}")
    assert cli(*put, "--json", code=5).err.count("fence_too_old") == 1


def test_U2_Q4_a_write_under_a_held_lease_is_taken(cli: LeaseCli, up: QuorumUp) -> None:
    def put() -> None:
        (lease,) = cli("lease", "list", "--json").json["leases"]
        words = ("entity", "put", "mission", "m1", "title=On", "--timeout", "50s")
        done = Cli(up.home)(*words, "--fence", f"deploy@{lease['fence']}", "--json", code=None)
        told.append(done.code)
        assert cli("lease", "release", "deploy").code == 0

    told: list[int] = []
    running = cli.start(*cli.words(WAITS, "--ttl", "2s"), env={"OUT": str(cli.out)})
    until(lambda: cli.is_on)
    put()
    running.communicate(timeout=60)
    assert (told, running.returncode) == ([0], 5), "what takes a lease away ends its command"
    cli("lease", "release", "deploy", code=4)


def test_U2_Q4_a_second_taker_is_refused_or_waits_its_turn(cli: LeaseCli) -> None:
    first = cli.start(*cli.words(WAITS), env={"OUT": str(cli.out)})
    until(lambda: cli.is_on)
    held = cli(*cli.words("true", "--json"), code=5)
    assert held.error["code"] == "lease_held"
    assert "was not free within 50 ms" in cli.run("true", "--wait", "50ms", code=5)
    second = cli.start(*cli.words("true", "--wait", "5m"))
    until(lambda: _waiting(cli) == ["ana"])
    # SIGTERM goes on to the command; then the lease goes on to the next.
    os.kill(first.pid, signal.SIGTERM)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    first.communicate(timeout=60)
    assert first.returncode == 128 + signal.SIGTERM
    assert "nobody holds a lease" in cli("lease", "list").err


def _waiting(cli: Cli) -> list[str]:
    found = cli("lease", "list", "--json", "--local").json["leases"]
    return [name for lease in found for name in lease["waiting"]]


def test_U2_Q4_a_command_whose_lease_cannot_be_renewed_is_ended(
    up: QuorumUp, cli: LeaseCli
) -> None:
    with cli.when_on(up.lose_quorum):
        said = cli.run(STUBBORN, "--ttl", "1s", "--grace", "100ms", code=5)
    assert "the lease deploy is lost; the command gets SIGTERM" in said
    assert "error: the lease 'deploy' was lost while the command ran" in said


LATE = """trap '' TERM HUP; echo $$ > "$OUT"; while :; do sleep 0.05; done"""


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_U2_Q4_the_command_of_a_holder_that_was_stopped_or_killed_ends_before_the_next_one_begins(
    cli: LeaseCli, how: signal.Signals
) -> None:
    """Nobody renews the lease, and nobody who could end the command is there: but its guard is."""
    options = ("--ttl", "5s", "--grace", "100ms")
    holder = cli.start(*cli.words(LATE, *options), env={"OUT": str(cli.out)})
    until(lambda: cli.out.exists() and cli.out.read_text().endswith("\n"))
    command = int(cli.out.read_text())
    try:
        (lease,) = cli("lease", "list", "--json").json["leases"]
        os.kill(holder.pid, how)
        # The command of the next holder looks whether the earlier one still does anything.
        next_one = f"! grep -q '^State:[[:space:]]*[RSDTt]' /proc/{command}/status"
        second = cli.start(*cli.words(next_one, "--wait", "5m"))
        _, err = second.communicate(timeout=60)
        assert second.returncode == 0, f"two at once: {err!r}"
        fence = f"deploy@{lease['fence']}"
        put = ("entity", "put", "mission", "m1", "title=Late", "--fence", fence, "--json")
        assert cli(*put, code=5).err.count("fence_too_old") == 1, "what it left behind"
        if how is signal.SIGSTOP:
            os.kill(holder.pid, signal.SIGCONT)
        _, err = holder.communicate(timeout=60)
        assert holder.returncode == (5 if how is signal.SIGSTOP else -how), err
    finally:
        holder.kill()
        with suppress(ProcessLookupError):
            os.kill(command, signal.SIGKILL)
