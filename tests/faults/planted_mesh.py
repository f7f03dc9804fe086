"""Bugs of meshes over the bus and of capabilities to plant, for `faults.planted`, each with the
finder that must see it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import pytest

from holdfast.node.bus.meshes import mesh_receive
from holdfast.node.bus.meshes.grants import MeshGrants, MeshPeer
from holdfast.node.bus.meshes.mesh_link import MeshLink
from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.bus_mesh import EntriesPage, MeshWord
from holdfast.rules.bus import capability
from holdfast.rules.bus.capability import Capability
from holdfast.rules.bus.meshes.coverage import NOTHING, cover
from holdfast.rules.errors import ForgedOrigin

Patch = Callable[[pytest.MonkeyPatch], None]


def _coverage_before_rows(patch: pytest.MonkeyPatch) -> None:
    """A page is noted as covered when it is about to be stored."""
    real = mesh_receive.receive_mesh_page

    def hasty(
        engine: NodeEngine,
        grants: MeshGrants,
        peer: MeshPeer,
        page: mesh_receive.DecodedMeshPage,
        absent: Collection[str] | None,
    ) -> mesh_receive.MeshPageReceived:
        covered = [(page.start, page.end)]
        engine.write("bus.take", lambda tx: tx.stream_cover(page.name, covered, base=page.base))
        return real(engine, grants, peer, page, absent)

    patch.setattr(mesh_receive, "receive_mesh_page", hasty)


def _taken_from_whoever_brings_it(patch: pytest.MonkeyPatch) -> None:
    """Whoever may write may also bring what others wrote."""
    real = mesh_receive.check_may_bring

    def trusting(*given: Any) -> None:
        with suppress(ForgedOrigin):
            real(*given)

    patch.setattr(mesh_receive, "check_may_bring", trusting)


def _held_when_pushed(patch: pytest.MonkeyPatch) -> None:
    """What was sent to a peer counts as stored there."""
    real = MeshLink._next_word

    async def hasty(link: MeshLink) -> MeshWord | None:
        word = await real(link)
        if isinstance(word, EntriesPage):
            sent = cover(NOTHING, word.start, word.end)
            link._confirm(link._given.name(word.number), sent)
        return word

    patch.setattr(MeshLink, "_next_word", hasty)


def _widened(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks whether a step gives more than the one before it."""
    patch.setattr(capability, "_check_narrows", lambda found: None)


def _never_ending(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the clock."""
    patch.setattr(capability, "_check_times", lambda found, now_ms: None)


def _signed_by_anybody(patch: pytest.MonkeyPatch) -> None:
    """Only what the issuer signed is verified, and not who passed it on."""
    real = capability._check_signatures

    def first_only(found: Capability) -> None:
        real(Capability(found.version, found.issuer, found.steps[:1]))

    patch.setattr(capability, "_check_signatures", first_only)


PLANTS: dict[str, tuple[str, Patch]] = {
    "coverage before rows": ("mesh power", _coverage_before_rows),
    "coverage before rows, in a world": ("mesh", _coverage_before_rows),
    "page taken from a peer that may not relay": ("mesh", _taken_from_whoever_brings_it),
    "push counted as held": ("mesh", _held_when_pushed),
    "widened capability accepted": ("capabilities", _widened),
    "expired capability accepted": ("capabilities", _never_ending),
    "capability of another key's chain accepted": ("capabilities", _signed_by_anybody),
}
