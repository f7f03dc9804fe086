"""What a committed order comes to, by the words of the contract, in plain dictionaries.

An entry is a dictionary: `id`, `print` (its fingerprint), `origin`, `lamport`, `epoch` (the lease
epoch that committed it), `by` (the coordinator), `op`, and what the op needs. Its place in the list
is its number. The answer is (outcome, reason); outcome None is a refusal for good.

- An id is decided once. Again with the same print: nothing new. With another: a conflict.
- What was given up before it came is void.
- Of an intent with several entities all change or none.
- A base is the number of changes that the writer knows of an entity.
- A lease is a line of people. The first in it holds it, from the entry that made them first.
- Of the claims of a generation the first that is committed holds the task.
"""

from __future__ import annotations

import json
from typing import Any

Entry = dict[str, Any]
Answer = tuple[str | None, str]

ABOVE = {
    "milestone": ("mission", "missionId"),
    "slice": ("milestone", "milestoneId"),
    "feature": ("slice", "sliceId"),
}


def same(one: Any, other: Any) -> bool:
    """As JSON, where 1 and true and 1.0 are three things."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class QuorumModel:
    def __init__(self) -> None:
        self.decided: dict[bytes, tuple[bytes, Answer]] = {}
        self.void: set[bytes] = set()
        self.versions: dict[tuple[str, str], list[dict[str, Any]]] = {}
        """Every version of an entity that was ever committed; `fields` None where it was
        deleted."""
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.turns: dict[str, list[Entry]] = {}
        self.lost: set[str] = set()
        self.number = 0

    def fold(self, entry: Entry) -> Answer:
        if entry["id"] in self.void:
            return None, "intent_abandoned"
        if entry["id"] in self.decided:
            print_, answer = self.decided[entry["id"]]
            if print_ != entry["print"]:
                return "conflict_requires_merge", "id_reused"
            return ("noop_already_applied", answer[1]) if answer[0] == "applied" else answer
        self.number = entry["number"]
        made: Answer = getattr(self, "_" + entry["op"].replace(".", "_"))(entry)
        self.decided[entry["id"]] = (entry["print"], made)
        return made

    # --- entities ---

    def live(self, type: str, id: str) -> dict[str, Any] | None:
        versions = self.versions.get((type, id))
        return None if not versions else versions[-1]["fields"]

    def _entity_change(self, entry: Entry) -> Answer:
        changes = entry["changes"]
        for one in changes:
            if one["epoch"] is not None and one["epoch"] != entry["epoch"]:
                return "rejected_fenced", "fence_too_old"
            if one["guard"] is not None and not self._holds(*one["guard"]):
                return "rejected_fenced", "fence_too_old"
        if any(self._is_nowhere(one) for one in changes):
            return None, "unknown_entity"
        found = [self._against_base(one, entry) for one in changes]
        if "lost" in found or len(set(found)) == 2:
            return "conflict_requires_merge", "revision_moved"
        if found[0] == "nothing to do":
            return "superseded", ""
        after = {key: versions[-1]["fields"] for key, versions in self.versions.items()}
        for one in changes:
            key = (one["type"], one["id"])
            problem = self._put(after, key, one)
            if problem:
                return None, problem
        problem = self._shape(after, [(one["type"], one["id"]) for one in changes])
        if problem:
            return None, problem
        for one in changes:
            key = (one["type"], one["id"])
            version = {
                "fields": after[key],
                "author": entry["origin"],
                "lamport": entry["lamport"],
                "whole": one["kind"] != "patch",
            }
            self.versions.setdefault(key, []).append(version)
        return "applied", ""

    def _is_nowhere(self, one: dict[str, Any]) -> bool:
        """There is nothing to change, and its writer has seen no other state of it."""
        versions = self.versions.get((one["type"], one["id"]), [])
        if one["kind"] == "put" or (versions and versions[-1]["fields"] is not None):
            return False
        if not versions:
            return one["base"] is None
        return one["kind"] == "patch" and one["base"] in (None, len(versions))

    def _against_base(self, one: dict[str, Any], entry: Entry) -> str:
        versions = self.versions.get((one["type"], one["id"]), [])
        now = versions[-1]["fields"] if versions else None
        if one["kind"] == "delete" and now is None and one["base"] in (None, len(versions)):
            return "nothing to do"
        if one["base"] is None or one["base"] == len(versions):
            return "fits"
        if one["base"] == 0 and now is None:
            return "fits"
        if one["base"] > len(versions):
            return "lost"
        last = versions[-1]
        if (
            last["whole"]
            and last["author"] == entry["origin"]
            and last["lamport"] > entry["lamport"]
        ):
            return "nothing to do"
        if one["kind"] == "delete":
            return "nothing to do" if now is None else "lost"
        if now is None:
            return "lost"
        wanted = all(name in now and same(now[name], one["fields"][name]) for name in one["fields"])
        absent = all(name not in now for name in one["removed"])
        return "nothing to do" if wanted and absent else "lost"

    def _put(self, after: dict[Any, Any], key: Any, one: dict[str, Any]) -> str:
        before = after.get(key)
        if one["kind"] == "delete":
            after[key] = None
            return ""
        fields = dict(one["fields"])
        if one["kind"] == "patch":
            fields = {**(before or {}), **fields}
            for name in one["removed"]:
                fields.pop(name, None)
        needs = {"mission": ["title"], "task": ["title"], "task_metadata": []}.get(key[0])
        if needs is None:
            needs = ["title", ABOVE[key[0]][1]]
        if any(name not in fields for name in needs):
            return "bad_entity"
        blind = key[0] == "task" and before is not None and one["base"] is None
        if blind and (before or {}).get("column") != fields.get("column"):
            return "base_required"
        after[key] = fields
        return ""

    def _shape(self, after: dict[Any, Any], touched: list[Any]) -> str:
        """The first thing that is wrong, in the order of the entities of the intent."""
        for key in touched:
            type, id = key
            if after[key] is None:
                below = [
                    other
                    for other, fields in after.items()
                    if fields is not None and self.parent(other, fields) == key
                ]
                if below and not (type == "task" and id in self.turns):
                    return "has_children"
                continue
            parent = self.parent(key, after[key])
            by_turn = parent is not None and parent[0] == "task" and parent[1] in self.turns
            if parent is not None and after.get(parent) is None and not by_turn:
                return "orphaned"
            if type == "task" and self._reaches(after, id, id):
                return "dependency_cycle"
        return ""

    def parent(self, key: Any, fields: dict[str, Any]) -> Any:
        if key[0] == "task_metadata":
            return ("task", key[1])
        return (ABOVE[key[0]][0], fields[ABOVE[key[0]][1]]) if key[0] in ABOVE else None

    def _reaches(self, after: dict[Any, Any], start: str, goal: str) -> bool:
        reached: set[str] = set()
        front = {start}
        while front:
            front = {
                other
                for id in front
                for other in (after.get(("task", id)) or {}).get("dependencies", [])
            } - reached
            reached |= front
        return goal in reached

    # --- giving up ---

    def _intent_abandon(self, entry: Entry) -> Answer:
        if entry["intent"] in self.decided or entry["intent"] in self.void:
            return "noop_already_applied", ""
        self.void.add(entry["intent"])
        return "applied", ""

    # --- leases ---

    def _holds(self, name: str, since: int) -> bool:
        line = self.lines.get(name)
        return bool(line) and line is not None and line[0]["since"] == since

    def _lease_acquire(self, entry: Entry) -> Answer:
        line = self.lines.setdefault(entry["name"], [])
        if line and not entry["wait"]:
            return None, "lease_held"
        line.append({"who": entry["origin"], "session": entry["id"], "since": 0, "heard": 0})
        self._first(line)
        return "applied", ""

    def _first(self, line: list[dict[str, Any]]) -> None:
        if line and not line[0]["since"]:
            line[0]["since"] = line[0]["heard"] = self.number

    def _lease_renew(self, entry: Entry) -> Answer:
        line = self.lines.get(entry["name"]) or [{"session": None}]
        if line[0]["session"] != entry["session"]:
            return "rejected_fenced", "lease_not_held"
        if line[0]["who"] != entry["origin"]:
            return None, "not_ours"
        line[0]["heard"] = self.number
        return "applied", ""

    def _lease_release(self, entry: Entry) -> Answer:
        line = self.lines.get(entry["name"], [])
        for one in line:
            if one["session"] == entry["session"]:
                if one["who"] != entry["origin"]:
                    return None, "not_ours"
                line.remove(one)
                self._first(line)
                return "applied", ""
        return "superseded", ""

    def _lease_expire(self, entry: Entry) -> Answer:
        if entry["origin"] != entry["by"]:
            return None, "not_the_coordinator"
        line = self.lines.get(entry["name"], [])
        if not line or line[0]["heard"] != entry["heard"]:
            return "superseded", ""
        line.pop(0)
        self._first(line)
        return "applied", ""

    # --- tasks ---

    def standing(self, task: str) -> tuple[str, int, str | None]:
        """Status, generation and holder, from all turns in commit order."""
        status, generation, holder = "open", 0, None
        for turn in self.turns[task]:
            if status not in ("open", "claimed"):
                continue
            kind, who = turn["kind"], turn["origin"]
            if kind == "claim" and status == "open" and turn["generation"] == generation:
                status, holder = "claimed", who
            elif kind == "release" and status == "claimed":
                if holder == who and turn["generation"] == generation:
                    status, holder, generation = "open", None, generation + 1
            elif kind in ("complete", "cancel"):
                status = {"complete": "completed", "cancel": "cancelled"}[kind]
        return status, generation, holder

    def _task(self, entry: Entry) -> Answer:
        kind = entry["kind"]
        if kind == "create":
            self.turns[entry["task"]] = [entry]
            return "applied", ""
        if entry["task"] not in self.turns:
            return None, "unknown_task"
        status, generation, holder = self.standing(entry["task"])
        self.turns[entry["task"]].append(entry)
        if status in ("completed", "cancelled"):
            return "superseded", ""
        lost = entry["generation"] != generation or holder not in (None, entry["origin"])
        return ("superseded", "") if kind == "claim" and lost else ("applied", "")

    _task_create = _task_claim = _task_release = _task_complete = _task_cancel = _task
