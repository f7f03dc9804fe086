"""How a node is, in words: what is wrong, what it means, and the command that helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.apps.web.words import count, some, state_words

_ORDER: Final = ("bad", "warn", "calm")


class Finding(NamedTuple):
    """One thing that a person should know."""

    tone: str
    text: str
    hint: str = ""
    command: str = ""
    link: str = ""


def findings(known: Mapping[str, Any]) -> list[Finding]:
    """What is worth knowing, the worst first. `known` has the documents of the API by name; one
    that the caller may not see is None.
    """
    found = [
        *_disk(known["status"]),
        *_brokers(known["brokers"]),
        *_links(known["links"]),
        *_outbox(known["status"]),
        *_conflicts(known["conflicts"]),
        *_unread(known["status"]),
    ]
    return sorted(found, key=lambda one: _ORDER.index(one.tone))


def verdict(found: Sequence[Finding], name: str) -> tuple[str, str]:
    """The tone of it all, and a sentence."""
    if any(one.tone == "bad" for one in found):
        return "bad", f"{name} needs you"
    if any(one.tone == "warn" for one in found):
        return "warn", f"{name} works, with something to look at"
    return "good", f"{name} is well"


def next_command(known: Mapping[str, Any]) -> str:
    """The command that helps most from here, where nothing is wrong."""
    if not known["meshes"]:
        return "holdfast mesh create NAME"
    if known["log"]["head"] == 0:
        return "holdfast state set KEY VALUE"
    brokers = (known["brokers"] or {}).get("brokers")
    if not brokers and not (known["links"] or {}).get("links"):
        return "holdfast mesh publish --broker ADDRESS"
    return ""


def _disk(status: Mapping[str, Any] | None) -> Iterator[Finding]:
    disk = status and status["disk"]
    if not disk or disk["level"] == "ok":
        return
    full = disk["level"] == "full"
    yield Finding(
        "bad" if full else "warn",
        "The disk is full: this node refuses writes." if full else "The disk is getting full.",
        "Make room, or let the home hold more.",
        "holdfast sweep --dry-run",
    )


def _brokers(found: Any) -> Iterator[Finding]:
    for broker in (found or {}).get("brokers", ()):
        error = broker["last_error"] if broker["attempts"] else None
        if error is not None:
            tone = "bad" if broker["state"] == "stopped" else "warn"
            said = f"The broker {broker['broker']} is {state_words(broker['state'])}: "
            yield Finding(tone, said + error["message"], error["hint"], link="/topology")
        for mesh in broker["meshes"]:
            if mesh["trouble"] is not None:
                told = f"{mesh['mesh']} is not synced: {mesh['trouble']['message']}"
                yield Finding("bad", told, mesh["trouble"]["hint"], link="/topology")
            if mesh["dead"]:
                said = f"{some(mesh['dead'], 'message')} of {mesh['mesh']} were refused."
                yield Finding("warn", said, link="/outbox?state=dead")
            if mesh["state"] == "paused":
                said = f"{mesh['mesh']} is paused: what is written here waits."
                yield Finding("calm", said, command=f"holdfast mesh resume --mesh {mesh['mesh']}")


def _links(found: Any) -> Iterator[Finding]:
    for link in (found or {}).get("links", ()):
        error = link["last_error"] if link["attempts"] else None
        if error is not None:
            tone = "bad" if link["state"] == "stopped" else "warn"
            said = f"The link {link['name']} is {state_words(link['state'])}: {error['message']}"
            yield Finding(tone, said, error["hint"], link="/topology")
        if link["quarantined"]:
            said = f"{some(link['quarantined'], 'envelope')} of {link['name']} wait in quarantine."
            yield Finding("warn", said, command=f"holdfast link quarantine {link['name']}")


def _outbox(status: Mapping[str, Any] | None) -> Iterator[Finding]:
    for lane in (status or {}).get("outbox", ()):
        if lane["failing"] is not None and lane["blocks"]:
            failing = f"{lane['failing'][:13]} of {lane['lane']}"
            said = f"{failing} was refused; behind it waits {lane['blocks']}."
            yield Finding("warn", said, lane["problem"] or "", link="/outbox?state=dead")


def _conflicts(found: Any) -> Iterator[Finding]:
    items = (found or {}).get("items", ())
    if items:
        more = " or more" if found.get("next") else ""
        one = len(items) == 1 and not more
        said = "1 conflict is open." if one else f"{count(len(items))}{more} conflicts are open."
        kept = "Merges kept one side; the other can be restored."
        yield Finding("calm", said, kept, link="/conflicts")


def _unread(status: Mapping[str, Any] | None) -> Iterator[Finding]:
    if status and status["unread"]:
        said = f"{some(status['unread'], 'message')} unread."
        yield Finding("calm", said, link="/inbox?unread=yes")
