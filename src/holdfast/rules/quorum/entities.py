"""What an entity may hold, type by type.

An entity is a JSON object under a type and an id. Its known fields are checked, all others are kept
as they are: a later version may know them.

    task               title, description, column, dependencies, steps
    task_metadata      priority, modelOverrides, documents; only as compare-and-set
    mission            title
    milestone          title, missionId
    slice              title, milestoneId
    feature            title, sliceId
    agent_definition   name; no secrets, and nothing of the running process
    project_settings   anything but secrets
    mesh_settings      handoff, minority, lostAfterMs

Who works on a task is not here: claims and ends are turns (`rules/tasks.py`). A task moves from one
column to another only as compare-and-set: a transition begins somewhere.

Whole numbers beyond ±(2^53 - 1) are refused: other languages read them as another number, and a
snapshot of all entities could not be written canonically because of one of them.

A secret is told by its name, wherever in the object it stands. A field of such a name with a
number, a truth value or nothing in it is no secret (`maxToken: 5`, `requirePassword: true`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import msgspec

from holdfast.rules import limits, names
from holdfast.rules.data_classes import ENTITY_TYPES, DataClass
from holdfast.rules.errors import (
    BadEntity,
    BadInput,
    BaseRequired,
    OverLimit,
    SecretRefused,
    UnknownEntityType,
)
from holdfast.rules.fingerprint import SAFE_INT_MAX

Fields = dict[str, Any]

PARK: Final = "park"
TO_LOCAL: Final = "reassign-to-local"
ANY_HEALTHY: Final = "reassign-any-healthy"
HANDOFF_POLICIES: Final = (PARK, TO_LOCAL, ANY_HEALTHY)
"""What follows for the tasks of a lost node; the first is the default."""
MINORITY_POLICIES: Final = ("queue", "reject")
"""What a node without a quorum does with strong writes; the first is the default."""
MESH_SETTINGS_ID: Final = "quorum"
"""A mesh has one entity of settings. Any other would be taken for settings, and change nothing."""

PARENT_FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "milestone": ("mission", "missionId"),
    "slice": ("milestone", "milestoneId"),
    "feature": ("slice", "sliceId"),
}
"""By type: the type of its parent, and the field that names the parent's id."""

_NEEDS_BASE: Final = frozenset({"task_metadata"})
_HOLDS_NO_SECRETS: Final = frozenset({"project_settings", "mesh_settings", "agent_definition"})
_SECRET_ENDINGS: Final = (
    "apikey",
    "secret",
    "password",
    "passphrase",
    "token",
    "privatekey",
    "credential",
    "credentials",
    "authorization",
    "providerauth",
    "authmaterial",
)
_RUNTIME: Final = frozenset(
    {"pid", "process", "processhandle", "heartbeat", "lastheartbeatat", "worktreepath", "runtime"}
)
"""Fields of an agent that are true on its own node only."""

_SHAPE_FIELDS_MAX: Final = 16
"""Entities of so many fields are known by the names of all of them."""
_FLAT: Final = frozenset({str, bool, int, float, type(None)})
_LONG_NUMBER: Final = re.compile(rb"[0-9]{16}")
_encoder: Final = msgspec.json.Encoder(order="deterministic")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode

canonical: Final = _encoder.encode
"""A value as rows keep it: keys sorted, so that equal values have equal bytes."""


def read_fields(raw: bytes) -> Fields:
    """The fields of a row, or of an operation that was checked."""
    fields: Fields = _decode(raw)
    return fields


def check_type(type: str) -> DataClass:
    found = ENTITY_TYPES.get(type)
    if found is None:
        shown = type if len(type) < 80 else f"{type[:80]}…"
        raise UnknownEntityType(
            f"there are no entities of the type {shown!r}",
            hint=f"use one of: {', '.join(ENTITY_TYPES)}",
        )
    return found


def check_name(type: str, id: str) -> None:
    """Raises unless an entity of this type may have this id."""
    names.check_key(id, "id of an entity", limits.ENTITY_ID_BYTES_MAX)
    if type == "mesh_settings" and id != MESH_SETTINGS_ID:
        raise BadEntity(f"the settings of a mesh are the entity {MESH_SETTINGS_ID!r}: nothing else")


def needs_base(type: str) -> bool:
    """Whether every change of this type must say what it replaces."""
    return type in _NEEDS_BASE


def base_missing(type: str) -> BaseRequired:
    return BaseRequired(f"{type} is changed as compare-and-set only, and there is no base revision")


def parent_of(type: str, id: str, fields: Fields) -> str:
    """The id of the parent that an entity names; empty for types that have none."""
    if type == "task_metadata":
        return id
    found = PARENT_FIELDS.get(type)
    return "" if found is None else str(fields.get(found[1], ""))


def parent_type(type: str) -> str:
    if type == "task_metadata":
        return "task"
    found = PARENT_FIELDS.get(type)
    return "" if found is None else found[0]


def check_given(type: str, fields: Fields, *, whole: bool) -> None:
    """Raises unless these fields may be written to an entity of this type. With `whole` they are
    all that it has, and those that it must have are asked for.
    """
    if whole and len(fields) <= _SHAPE_FIELDS_MAX and _is_plainly_given(type, fields):
        return
    if len(fields) > limits.ENTITY_FIELDS_MAX:
        raise OverLimit(
            f"an entity of {len(fields)} fields; the most is {limits.ENTITY_FIELDS_MAX}"
        )
    checks = _FIELDS.get(type, {})
    for name, value in fields.items():
        _check_field_name(name)
        check = checks.get(name)
        if check is not None:
            try:
                check(value)
            except BadInput as error:
                raise BadEntity(f"{name} of a {type}: {error.message}") from None
    if whole:
        for name in _REQUIRED.get(type, ()):
            if name not in fields:
                raise BadEntity(f"a {type} lacks the field {name}")
    if type in _HOLDS_NO_SECRETS:
        refuse_secrets(fields, type)
    if type == "agent_definition":
        _refuse_runtime(fields)


def _refuse_runtime(fields: Fields) -> None:
    for name in fields:
        if _plain(name) in _RUNTIME:
            raise BadEntity(f"{name} of an agent is true on its own node only, and does not travel")


def _is_plainly_given(type: str, fields: Fields) -> bool:
    """Whether all fields of an entity are surely good; what is not so is looked at one by one, and
    that says what is refused first.
    """
    checks = _checks_of(type, tuple(fields))
    if checks is None:
        return False
    try:
        for name, check in checks:
            check(fields[name])
    except BadInput:
        return False
    return True


@lru_cache(maxsize=256)
def _checks_of(
    type: str, given: tuple[str, ...]
) -> tuple[tuple[str, Callable[[object], None]], ...] | None:
    """What is to be asked of the values of an entity with these fields, if nothing else is; None if
    there is more. Cached, because entities of a mesh have few shapes.
    """
    if type in _HOLDS_NO_SECRETS or any(name not in given for name in _REQUIRED.get(type, ())):
        return None
    try:
        for name in given:
            _check_field_name(name)
    except BadInput:
        return None
    checks = _FIELDS.get(type, {})
    return tuple([(name, checks[name]) for name in given if name in checks])


@lru_cache(maxsize=1024)
def _check_field_name(name: str) -> None:
    # Cached, because entities of a mesh have few names of fields, and each is in every write.
    names.check_key(name, "name of a field")


def check_result(type: str, fields: Fields, raw: bytes) -> None:
    """Raises unless an entity may be as a patch makes it."""
    if len(raw) > limits.ENTITY_BYTES_MAX:
        raise OverLimit(
            f"the {type} would have {len(raw)} bytes; the most is {limits.ENTITY_BYTES_MAX}"
        )
    if len(fields) > limits.ENTITY_FIELDS_MAX:
        raise OverLimit(
            f"the {type} would have {len(fields)} fields; the most is {limits.ENTITY_FIELDS_MAX}"
        )
    for name in _REQUIRED.get(type, ()):
        if name not in fields:
            raise BadEntity(f"a {type} lacks the field {name}")


def refuse_secrets(value: object, what: str) -> None:
    """Raises SecretRefused if some field in it is a secret by its name. The value is not shown."""
    waiting: list[object] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        elif isinstance(found, dict):
            for name, part in found.items():
                if _is_secret(name, part):
                    raise SecretRefused(f"{what} holds {name!r}, which by its name is a secret")
                waiting.append(part)


def refuse_inexact(raw: bytes, value: object) -> None:
    """Raises BadEntity if a double cannot hold some whole number in `value`, which `raw` spells."""
    if type(value) is dict and _FLAT.issuperset(map(type, value.values())):
        # As nearly all are: then only whole numbers of it are looked at.
        for part in value.values():
            if type(part) is int and not -SAFE_INT_MAX <= part <= SAFE_INT_MAX:
                raise _inexact()
        return
    waiting: list[object] = [value]
    looked = False
    while waiting:
        found = waiting.pop()
        kind = type(found)
        if kind is int:
            if not -SAFE_INT_MAX <= cast(int, found) <= SAFE_INT_MAX:
                raise _inexact()
        elif kind is list or kind is dict:
            # A flat object, as nearly all are, is looked through sooner than its bytes are.
            if found is not value and not looked:
                if _LONG_NUMBER.search(raw) is None:
                    return
                looked = True
            waiting += found.values() if isinstance(found, dict) else cast(list[object], found)


def _inexact() -> BadEntity:
    return BadEntity("a whole number is beyond ±(2^53 - 1)", hint="send such a number as text")


def _is_secret(name: str, value: object) -> bool:
    holds = isinstance(value, str | dict | list) and bool(value)
    return holds and _plain(name).endswith(_SECRET_ENDINGS)


def _plain(name: str) -> str:
    return "".join(char for char in name.casefold() if char.isalnum())


# --- fields --------------------------------------------------------------------------------------


def _prose(most: int, *, empty: bool = True) -> Callable[[object], None]:
    def check(value: object) -> None:
        if not isinstance(value, str):
            raise BadEntity("it is not text")
        if value or not empty:
            names.check_key(value, "text", most)

    return check


def _check_id(value: object) -> None:
    if not isinstance(value, str):
        raise BadEntity("it is not the id of an entity")
    names.check_key(value, "id of an entity", limits.ENTITY_ID_BYTES_MAX)


def _check_dependencies(value: object) -> None:
    if not isinstance(value, list):
        raise BadEntity("it is not a list of tasks")
    if len(value) > limits.TASK_DEPENDENCIES_MAX:
        raise OverLimit(f"{len(value)} tasks; the most is {limits.TASK_DEPENDENCIES_MAX}")
    for one in value:
        _check_id(one)
    if len(set(value)) != len(value):
        raise BadEntity("it names a task twice")


def _check_steps(value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise BadEntity("it is not a list of objects")
    if len(value) > limits.TASK_STEPS_MAX:
        raise OverLimit(f"{len(value)} steps; the most is {limits.TASK_STEPS_MAX}")


def _check_object(value: object) -> None:
    if not isinstance(value, dict):
        raise BadEntity("it is not an object")


def _check_list(value: object) -> None:
    if not isinstance(value, list):
        raise BadEntity("it is not a list")


def _check_priority(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadEntity("it is neither a word nor a whole number")


def _one_of(words: tuple[str, ...]) -> Callable[[object], None]:
    def check(value: object) -> None:
        if value not in words:
            raise BadEntity(f"it is none of {', '.join(words)}")

    return check


def _check_duration(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limits.DAY_MS:
        raise BadEntity(f"it is not a time of 1 to {limits.DAY_MS} ms")


_TITLE: Final = _prose(limits.TITLE_BYTES_MAX, empty=False)
_FIELDS: Final[Mapping[str, Mapping[str, Callable[[object], None]]]] = {
    "task": {
        "title": _TITLE,
        "description": _prose(limits.DESCRIPTION_BYTES_MAX),
        "column": _prose(limits.KEY_BYTES_MAX, empty=False),
        "dependencies": _check_dependencies,
        "steps": _check_steps,
    },
    "task_metadata": {
        "priority": _check_priority,
        "modelOverrides": _check_object,
        "documents": _check_list,
    },
    "mission": {"title": _TITLE},
    "milestone": {"title": _TITLE, "missionId": _check_id},
    "slice": {"title": _TITLE, "milestoneId": _check_id},
    "feature": {"title": _TITLE, "sliceId": _check_id},
    "agent_definition": {"name": _TITLE},
    "mesh_settings": {
        "handoff": _one_of(HANDOFF_POLICIES),
        "minority": _one_of(MINORITY_POLICIES),
        "lostAfterMs": _check_duration,
    },
}
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "task": ("title",),
    "mission": ("title",),
    "milestone": ("title", "missionId"),
    "slice": ("title", "milestoneId"),
    "feature": ("title", "sliceId"),
    "agent_definition": ("name",),
}
