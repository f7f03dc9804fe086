"""How a tool is declared: what it takes and answers are types, from which its schemas follow.

    class StateGetAsked(ToolArguments, frozen=True):
        key: Key

    @STATE.reads("state_get", "Read shared state", StateGetAsked, StateFound)
    def state_get(call: AgentCall, asked: StateGetAsked) -> StateFound:
        "What an agent is told of the tool."

The docstring is for the agent that has to choose a tool, so it says when to use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.apps.mcp.tools.call import AgentCall
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import MCP_ROWS_DEFAULT, MCP_ROWS_MAX

A = TypeVar("A", bound="ToolArguments")
R = TypeVar("R", bound="ToolAnswer")
Kind = Literal["reads", "writes", "removes"]
Runs: TypeAlias = Callable[[AgentCall, A], R]
Declares: TypeAlias = Callable[[Runs[A, R]], Runs[A, R]]

Mesh = Annotated[
    str | None,
    msgspec.Meta(description="The mesh. It may be left out where there is only one; see `info`."),
]
Id = Annotated[
    str | None,
    msgspec.Meta(
        description="A name for this write: any text that you choose, like `task-12/report`. If "
        "you do not know whether a call has happened, make the same call with the same id: it is "
        "written once."
    ),
]
Limit = Annotated[int, msgspec.Meta(description="At most this many.", ge=1, le=MCP_ROWS_MAX)]
After = Annotated[
    str | None, msgspec.Meta(description="Goes on after this: the `next` of the last answer.")
]
Scope = Annotated[
    str,
    msgspec.Meta(description="Whose: `self` (yours), `all`, or `peer:` and a name."),
]
Expect = Annotated[
    str | None,
    msgspec.Meta(
        description="Writes only if this `stamp` is still what stands there, like `12@ana`, or "
        "`absent`: only if nothing does. Use it to change what you have read."
    ),
]
Confirm = Annotated[
    bool,
    msgspec.Meta(
        description="Say true only after your user has agreed. Clients that can ask the user "
        "themselves do so, and this is not looked at."
    ),
]
DEFAULT_ROWS = MCP_ROWS_DEFAULT


class ToolArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool."""

    mesh: Mesh = None


class ToolWarning(msgspec.Struct, frozen=True):
    """Something that the user of this node must know; each is told once."""

    type: str
    message: str
    mesh: str
    entity: str
    by_peer: str
    at_lamport: int


class ToolAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a tool."""

    warnings: tuple[ToolWarning, ...] = ()


class ToolReceipt(ToolAnswer, frozen=True, kw_only=True):
    """The receipt of a write: it is in the log and on the disk."""

    mesh: str
    id: str
    """The same call with this id is written once."""
    stamp: str
    """What `expect` takes, to write only if nobody has written since."""
    duplicate: bool
    """An earlier call with this id had written it."""
    outcome: str
    """`applied`, or why it is not what stands there now."""


@dataclass(frozen=True)
class AgentTool:
    """One tool."""

    name: str
    title: str
    kind: Kind
    asks: type[ToolArguments]
    answers: type[ToolAnswer]
    run: Callable[[AgentCall, Any], ToolAnswer]
    question: Callable[[Any], str | None]
    """What a person is asked before it runs; None if nobody has to be."""

    @property
    def said(self) -> str:
        return inspect.cleandoc(self.run.__doc__ or "")

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        return schema_of(self.asks)

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        return schema_of(self.answers)

    def asked(self, arguments: dict[str, Any] | None) -> ToolArguments:
        """The arguments, checked; BadInput says what is wrong with them."""
        try:
            return msgspec.convert(arguments or {}, self.asks)
        except msgspec.ValidationError as error:
            takes = ", ".join(one.encode_name for one in msgspec.structs.fields(self.asks))
            raise BadInput(
                f"the arguments of {self.name} cannot be used: {error}", hint=f"it takes: {takes}"
            ) from None


class AgentTools:
    """Collects the tools of one module."""

    def __init__(self) -> None:
        self._tools: list[AgentTool] = []

    def __iter__(self) -> Iterator[AgentTool]:
        return iter(self._tools)

    def reads(self, name: str, title: str, asks: type[A], answers: type[R]) -> Declares[A, R]:
        return self._declare("reads", name, title, asks, answers, _nothing_to_ask)

    def writes(self, name: str, title: str, asks: type[A], answers: type[R]) -> Declares[A, R]:
        return self._declare("writes", name, title, asks, answers, _nothing_to_ask)

    def removes(
        self,
        name: str,
        title: str,
        asks: type[A],
        answers: type[R],
        question: Callable[[A], str | None],
    ) -> Declares[A, R]:
        return self._declare("removes", name, title, asks, answers, question)

    def _declare(
        self,
        kind: Kind,
        name: str,
        title: str,
        asks: type[A],
        answers: type[R],
        question: Callable[[A], str | None],
    ) -> Declares[A, R]:
        def add(run: Runs[A, R]) -> Runs[A, R]:
            assert run.__doc__, f"{name} needs a docstring: it is what agents are told"
            self._tools.append(AgentTool(name, title, kind, asks, answers, run, question))
            return run

        return add


def _nothing_to_ask(asked: Any) -> None:
    return None


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a struct, with its own properties at the root as the protocol wants."""
    whole = msgspec.json.schema(kind)
    named = whole.get("$defs", {})
    root = dict(named.pop(whole["$ref"].rpartition("/")[2]))
    root.pop("title", None)
    if named:
        root["$defs"] = named
    return root
