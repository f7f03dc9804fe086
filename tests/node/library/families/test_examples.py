"""Every public verb of the library has an example in its docstring, and every example is run."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from support.example_world import example_world
from support.project import expect_none

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
OURS = ("holdfast.node", "holdfast.rules.listed")
INSIDE = {
    "NodeBus.loop_thread": "for what else runs on its loop",
    "NodeBus.quorums": "for the faces of a mesh with voters",
    "BusCapabilities.all": "for the bus, as the next six",
    **dict.fromkeys(
        f"BusCapabilities.{name}"
        for name in ("admit", "find", "gone", "look_at", "of_key", "shown_to", "with_relays")
    ),
    **dict.fromkeys(f"WriteBatch.{name}" for name in ("add", "add_file", "check_open", "next_id")),
}
"""Public to other rooms, and not for users."""
STARTS = ("open", "aopen", "connect", "aconnect", "lake", "entity_operation")

Verb = Callable[..., Any] | property


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("examples")
    before = os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
            patch.delenv(name)
        patch.setenv("HOLDFAST_STORE_SYNC", "normal")
        with example_world(folder) as found:
            os.chdir(folder)
            yield found
            os.chdir(before)


def test_U1_every_public_verb_has_an_example_that_works(world: dict[str, Any]) -> None:
    verbs = _verbs(world)
    assert len(verbs) > 150
    expect_none(
        [name for name, verb in verbs.items() if ">>>" not in (verb.__doc__ or "")],
        "end its docstring with an example, as the others do",
    )
    # Verbs of a batch have the docstrings of the verbs that they are made of.
    shown = {verb.__doc__ or "": name for name, verb in verbs.items()}
    wrong = [said for text, name in shown.items() for said in _run(name, text, world)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "example",
    [
        ">>> team.state.get('colour')\n'green'",
        ">>> team.state.got('colour')",
        ">>> team.state.get('colour')\n'blue'\n>>> team.state.get(1)",
    ],
)
def test_U1_an_example_that_is_wrong_is_caught(example: str, world: dict[str, Any]) -> None:
    assert _run("planted", example, world)


def test_U1_verbs_for_coroutines_and_in_batches_show_the_same_examples() -> None:
    from holdfast.node.library import aio, batch

    for kind in (aio.AsyncState, aio.AsyncTasks, aio.AsyncFiles, batch.BatchState):
        for name, verb in vars(kind).items():
            if callable(verb) and not name.startswith("_"):
                assert ">>>" in (verb.__doc__ or ""), f"{kind.__name__}.{name}"


def _verbs(world: dict[str, Any]) -> dict[str, Verb]:
    """Functions of `holdfast`, and what users reach from what these return."""
    found: dict[str, Verb] = {f"holdfast.{name}": getattr(holdfast, name) for name in STARTS}
    team, node = world["team"], world["node"]
    with team.batch() as batch:
        begin = [node, team, batch, batch.state.set("build", 1), batch.files]
    with node.bus.subscribe("none") as feed, node.bus.serve("none", print) as serving:
        begin += [feed, serving, world["ship"].lease("none"), world["ship"], team.state.list()]
    with team.state.watch() as changes:
        begin.append(changes)
    seen: set[type] = set()
    while begin:
        face = begin.pop()
        kind = type(face)
        if kind in seen or not kind.__module__.startswith(OURS) or hasattr(kind, "__match_args__"):
            continue  # a struct or a named tuple is data
        seen.add(kind)
        for name, member in inspect.getmembers(kind):
            verb = f"{kind.__name__}.{name}"
            if name.startswith("_") or verb in INSIDE:
                continue
            if inspect.isfunction(member) or isinstance(member, property):
                found[verb] = member
        begin += _below(face)
    return found


def _below(face: object) -> Iterator[object]:
    """Faces that a face has: as attributes, and by properties."""
    for name, value in vars(face).items():
        if not name.startswith("_"):
            yield value
    for name, member in inspect.getmembers(type(face)):
        inside = name.startswith("_") or f"{type(face).__name__}.{name}" in INSIDE
        if isinstance(member, property) and not inside:
            with contextlib.suppress(holdfast.HoldfastError):
                yield getattr(face, name)


def _run(name: str, text: str, world: dict[str, Any]) -> Iterator[str]:
    """What is wrong with an example. What it does not show is not compared."""
    names = dict(world)
    for step in doctest.DocTestParser().get_examples(inspect.cleandoc(text)):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(step.source, f"<example of {name}>", "single"), names)
        except Exception as error:
            yield f"{name}: {step.source.strip()}: {type(error).__name__}: {error}"
            return
        if step.want and not doctest.OutputChecker().check_output(
            step.want, printed.getvalue(), FLAGS
        ):
            yield f"{name}: {step.source.strip()}: {printed.getvalue()!r} and not {step.want!r}"
