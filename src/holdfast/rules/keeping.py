"""How long a node keeps what a sweep may forget, as its settings say.

A span is a number of days, or `forever`. The log, facts and tombstones can be kept differently in
single meshes. Ids and blobs belong to no mesh: an id is known before anybody looks into its
envelope, and meshes share the bytes of equal files.

What would lose something is refused by the name of its rule:

    retention_below_floor        less than others may need to come back: their outbox may be so old
    outbox_max_age_above_dedupe_window
                                 an outbox that is older than what tells repetitions and deletions
    retention_facts_below_log    facts are in the log, and cannot go before it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.rules import limits
from holdfast.rules.errors import (
    BadInput,
    OutboxAgeAboveWindow,
    RetentionBelowFloor,
    RetentionFactsBelowLog,
)
from holdfast.rules.filters import CLASSES
from holdfast.rules.names import check_mesh

FOREVER: Final = "forever"
_DAYS: Final = re.compile(r"(\d{1,5})\s*d", re.ASCII)
_FACTS: Final = CLASSES["facts"]


class KeptFor(msgspec.Struct, frozen=True, kw_only=True):
    """How long a mesh keeps things at least, in milliseconds."""

    log_ms: int
    fact_ms: int
    dead_ms: int
    """Of the marks of deletions, and of tasks that have ended."""


class MeshRetention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one mesh keeps longer or shorter than the others."""

    log: str | None = None
    facts: str | None = None
    tombstones: str | None = None


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of forgetting."""

    log: str = f"{limits.LOG_TTL_MS // limits.DAY_MS}d"
    """Entries of the log."""
    facts: str | None = None
    """Facts, which are nowhere but in the log; None: as long as other entries."""
    tombstones: str = f"{limits.TOMBSTONE_TTL_MS // limits.DAY_MS}d"
    """The marks of deletions, and tasks that have ended."""
    ids: str = f"{limits.DEDUPE_TTL_MS // limits.DAY_MS}d"
    """Ids of entries that were truncated."""
    blobs: str = f"{limits.BLOB_RELEASE_AGE_MS // limits.DAY_MS}d"
    """The content of files that nothing names any more."""
    meshes: dict[str, MeshRetention] = {}

    def check(self, outbox_hours: int | None) -> None:
        """`outbox_hours`: the age of the outbox, if the settings name it."""
        floor = limits.RETENTION_DAYS_MIN
        for name in ("log", "facts", "tombstones", "ids"):
            _check_floor(name, getattr(self, name), floor)
        _check_floor("blobs", self.blobs, limits.BLOB_RELEASE_AGE_MS // limits.DAY_MS)
        _check_facts("", self.facts, self.log)
        _check_outbox("ids", self.ids, outbox_hours)
        _check_outbox("tombstones", self.tombstones, outbox_hours)
        for mesh, own in self.meshes.items():
            check_mesh(mesh)
            for name in MeshRetention.__struct_fields__:
                _check_floor(f"meshes.{mesh}.{name}", getattr(own, name), floor)
            _check_facts(f"meshes.{mesh}.", own.facts, own.log or self.log)
            _check_outbox(f"meshes.{mesh}.tombstones", own.tombstones, outbox_hours)

    def of(self, mesh: str) -> KeptFor:
        """What counts for a mesh; `""` for those that are not named."""
        own = self.meshes.get(mesh, MeshRetention())
        log_ms = span_ms(own.log or self.log)
        # A mesh that keeps its log for longer keeps the facts in it, too.
        fact_ms = max(log_ms, self.own_facts_ms(mesh))
        dead_ms = span_ms(own.tombstones or self.tombstones)
        return KeptFor(log_ms=log_ms, fact_ms=fact_ms, dead_ms=dead_ms)

    def own_facts_ms(self, mesh: str) -> int:
        """How long facts are kept, whatever the log is; 0 if that is not set."""
        facts = self.meshes.get(mesh, MeshRetention()).facts or self.facts
        return 0 if facts is None else span_ms(facts)

    def shown(self) -> dict[str, object]:
        """What is in force, for people and programs."""
        named = {mesh: _shown(self.of(mesh)) for mesh in sorted(self.meshes)}
        return {**_shown(self.of("")), "ids": self.ids, "blobs": self.blobs, "meshes": named}


def span_ms(text: str) -> int:
    """The milliseconds of `90d` or `forever`."""
    word = text.strip().lower()
    if word == FOREVER:
        return limits.RETENTION_FOREVER_MS
    days = _DAYS.fullmatch(word)
    if days is None or int(days[1]) > limits.RETENTION_DAYS_MAX:
        raise BadInput(
            f"nothing can be kept for {text!r}",
            hint=f'write "90d", {limits.RETENTION_DAYS_MAX} days at most, or "{FOREVER}"',
        )
    return int(days[1]) * limits.DAY_MS


def first_held(
    entries: Iterable[tuple[int, str, str]], bounds: Mapping[tuple[str, bool], int], below: int
) -> int:
    """The first offset to keep among those before `below`: a log goes from its beginning, so one
    entry that is too young holds all that came after it.

    `entries` are offset, mesh and op. `bounds` has the first offset that is too young for each mesh
    and for facts in it, and with the mesh `""` for meshes that are not named.
    """
    for offset, mesh, op in entries:
        is_fact = op in _FACTS
        bound = bounds.get((mesh, is_fact), bounds["", is_fact])
        if bound <= offset < below:
            return offset
    return below


def _shown(kept: KeptFor) -> dict[str, str]:
    spans = {"log": kept.log_ms, "facts": kept.fact_ms, "tombstones": kept.dead_ms}
    return {
        name: FOREVER if ms == limits.RETENTION_FOREVER_MS else f"{ms // limits.DAY_MS}d"
        for name, ms in spans.items()
    }


def _check_floor(name: str, text: str | None, days: int) -> None:
    if text is not None and span_ms(text) < days * limits.DAY_MS:
        raise RetentionBelowFloor(
            f"retention.{name} is {text}; at least {days}d are needed",
            hint=f'set {name.rpartition(".")[2]} = "{days}d" or longer in the table [retention]',
        )


def _check_facts(where: str, facts: str | None, log: str) -> None:
    if facts is not None and span_ms(facts) < span_ms(log):
        raise RetentionFactsBelowLog(
            f"retention.{where}facts is {facts}, but the log that has them is kept for {log}",
            hint=f'set facts = "{log}" or longer, or leave it out',
        )


def _check_outbox(name: str, text: str | None, hours: int | None) -> None:
    if text is not None and hours is not None and span_ms(text) < hours * limits.HOUR_MS:
        raise OutboxAgeAboveWindow(
            f"the outbox would keep messages for {hours} hours, but retention.{name} is {text}",
            hint=f"set max_age_hours of [outbox] to less, or retention.{name} to more",
        )
