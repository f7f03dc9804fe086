"""One finding of the doctor: its status, a sentence, and what to do."""

from __future__ import annotations

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """`name` is for programs, `message` for people, `fix` says what they can do about it."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    fix: str = ""


def ok(name: str, message: str) -> Check:
    return Check(name, "ok", message)


def warn(name: str, message: str, fix: str) -> Check:
    return Check(name, "warn", message, fix)


def fail(name: str, message: str, fix: str) -> Check:
    return Check(name, "fail", message, fix)


def joined_names(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
