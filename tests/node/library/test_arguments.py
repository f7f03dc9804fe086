"""Every argument of every verb, with values of wrong types: a typed error, and nothing happens.

The verbs and their parameters are found by looking at the classes, so a new verb is tried as well.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.library.aio import AsyncNode
from holdfast.node.library.node import open_node
from holdfast.rules.errors import BadInput, HoldfastError
from holdfast.rules.vectors import Model
from support.nodes import Nodes, team
from support.stores import read

ID = "018bcfe5-6800-7000-8000-0000000000aa"
WRONG: dict[str, tuple[object, ...]] = {
    "str": (3, b"x", 2.5, ["x"], 0, b"", []),
    "int": ("3", 2.5, b"3", True, [1]),
    "bytes": (3, ["x"]),
    "Iterable[str]": (3,),
    "Iterable[bytes]": (3,),
    "Model": ("m", None),
    "Filter": ("f",),
    "Ttl": (3,),
    "Mapping[str, Any]": (3, "x"),
}
"""By what a parameter takes: values that it must refuse."""
GOOD: dict[str, object] = {
    **dict.fromkeys(
        ("key", "subject", "predicate", "prefix", "title", "topic", "ref", "lane"), "k"
    ),
    **dict.fromkeys(("mesh", "slug"), "team"),
    "target": "hub",
    **dict.fromkeys(("consumer", "name", "queue", "member", "handle"), "reader"),
    **dict.fromkeys(("id", "task"), ID),
    **dict.fromkeys(("number", "offset", "after", "limit", "seq"), 1),
    **{"embedding": [1.0, 2.0], "query": [1.0, 2.0]},
    **dict.fromkeys(("value", "object"), 1),
    **dict.fromkeys(("states", "grants", "envelopes"), ()),
    **dict.fromkeys(("old", "new", "model"), Model(provider="p", name="m", dim=2)),
    **{"path": "a.txt", "content": b"x", "sha256": "00" * 32, "unread": True, "kind": "topic"},
    **{"invite": "hf1-x", "url": "http://127.0.0.1:1", "embed": list},
}
FAMILIES = ("state", "memory", "vectors", "files", "tasks", "facts", "inbox")


def faces(node: Any, mesh: Any) -> dict[str, object]:
    """Everything with verbs that a program gets from a node."""
    own = {name: getattr(node, name) for name in ("log", "inbox", "outbox", "sharing")}
    families = {f"mesh.{name}": getattr(mesh, name) for name in FAMILIES}
    return {"node": node, "mesh": mesh, **own, **families}


def trials(node: Any, mesh: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Calls with one wrong argument each."""
    for face, thing in faces(node, mesh).items():
        for verb, _ in inspect.getmembers(type(thing), callable):
            if verb.startswith("_"):
                continue
            call = getattr(thing, verb)
            for name, value in wrong_arguments(call):
                yield f"{face}.{verb}({name}={value!r})", with_one(call, name, value)


def wrong_arguments(verb: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    for name, parameter in inspect.signature(verb).parameters.items():
        takes = [part.strip() for part in str(parameter.annotation).split(" | ")]
        for value in (value for kind in takes for value in WRONG.get(kind, ())):
            said = "None" if value is None else type(value).__name__
            if said not in takes and not {"Any", "object", "bool"} & set(takes):
                yield name, value


def with_one(verb: Callable[..., Any], name: str, value: object) -> Callable[[], Any]:
    needed = {
        other: GOOD[other]
        for other, parameter in inspect.signature(verb).parameters.items()
        if parameter.default is parameter.empty and other != name
    }
    return lambda: verb(**needed, **{name: value})


def what_is_wrong(call: Callable[[], object]) -> str:
    try:
        call()
    except HoldfastError as error:
        return "" if error.message else "without a message"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


def test_U1_every_verb_refuses_arguments_of_wrong_types_and_does_nothing(nodes: Nodes) -> None:
    node = nodes.open()
    wrong = []
    tried = 0
    for name, call in trials(node, team(node)):
        tried += 1
        said = what_is_wrong(lambda: _exhausted(call()))  # noqa: B023
        wrong += [f"{name}: {said}"] if said else []
    assert not wrong, "\n".join(wrong)
    assert tried > 250, "verbs are no longer found"
    assert node.log.head().offset == 0
    assert not read(node._engine.store, lambda tx: tx.consumer_list())


def test_U1_every_verb_for_coroutines_refuses_them_too(nodes: Nodes) -> None:
    node = nodes.open()

    async def story() -> None:
        anode = AsyncNode(node)
        mesh = await anode.mesh("team")
        wrong = []
        for name, call in trials(anode, mesh):
            try:
                result = call()
                if isinstance(result, AsyncIterator):
                    async for _ in result:
                        pass
                else:
                    await result
            except HoldfastError:
                continue
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}")
            else:
                wrong.append(f"{name}: taken")
        assert not wrong, "\n".join(wrong)

    asyncio.run(story())
    assert node.log.head().offset == 0


@pytest.mark.parametrize("wrong", [[3], ["x"], "abc", b"abc", [None], {1: 2}])
def test_S5_what_is_no_envelope_at_all_is_refused(nodes: Nodes, wrong: Any) -> None:
    with pytest.raises(BadInput):
        nodes.open().apply(wrong)


@pytest.mark.parametrize("wrong", [{"home": 3}, {"peer": 3}, {"sync": 3}, {"peer": b"ana"}])
def test_U1_opening_refuses_them_too(tmp_path: Path, wrong: dict[str, object]) -> None:
    args: dict[str, Any] = {"home": tmp_path / "home", "peer": "ana", "create": True, **wrong}
    with pytest.raises(BadInput):
        open_node(**args)

    async def story() -> None:
        with pytest.raises(BadInput):
            await holdfast.aopen(**args)

    asyncio.run(story())
    assert not (tmp_path / "home").exists()


def _exhausted(result: object) -> object:
    return list(result) if isinstance(result, Iterator) else result
