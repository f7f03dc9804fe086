"""The public door of the simulator: its names, and the command that plays a seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import simulate
from holdfast.simulate import __main__ as command
from holdfast.simulate.world.seeds import PromiseBroken


def test_R1_every_public_name_of_the_simulator_can_be_used() -> None:
    assert sorted(simulate.__all__) == sorted(simulate._WHERE) == sorted(dir(simulate))
    for name in simulate.__all__:
        assert getattr(simulate, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = simulate.nothing  # type: ignore[attr-defined]


def test_R1_the_simulator_loads_nothing_before_it_is_used() -> None:
    loaded = "import sys, holdfast.simulate; print([m for m in sys.modules if 'simulate.' in m])"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("words", [[], ["nodes"], ["moon", "1"], ["nodes", "one"]])
def test_R1_a_command_without_a_world_or_a_seed_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(words) == 2
    assert "nodes|zones|delivery|bus|quorum SEED" in capsys.readouterr().err


def test_R1_a_broken_promise_becomes_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.simulate.zones import zones

    def tell(seed: int) -> zones.ZoneWorld:
        raise PromiseBroken(f"seed {seed}: an entry is lost")

    monkeypatch.setattr(zones, "tell", tell)
    assert command.main(["zones", "7"]) == 1
    assert capsys.readouterr().out == "seed 7: an entry is lost\n"
