"""The matrix of the source (§4): every row can be written, and travels as its class says."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.rules.data_classes import DataClass, WriteClass, write_class_of
from holdfast.rules.errors import BadEntity, BaseRequired, Orphaned, RevisionMoved, SecretRefused
from support.envelopes import MESH
from support.quorum_library import waiting_mesh

STRONG = (
    DataClass.TASKS,
    DataClass.TASK_METADATA,
    DataClass.MISSIONS,
    DataClass.AGENT_DEFINITIONS,
    DataClass.PROJECT_SETTINGS,
)


def test_Q1_every_row_of_the_matrix_can_be_written_and_travels_as_its_class_says(
    tmp_path: Path,
) -> None:
    for one in STRONG:
        assert write_class_of(one, voters=True) is WriteClass.STRONG
    with waiting_mesh("sqlite", tmp_path) as (home, mesh):
        entities, before = mesh.entities, len(home.order._shared.entries)
        # Tasks: who holds one, and what it consists of.
        task = mesh.tasks.create("build")
        mesh.tasks.claim(task.task)
        entities.put("task", "t0", {"title": "plan", "column": "todo"})
        steps = {"title": "ship", "dependencies": ["t0"], "steps": [{"title": "one"}]}
        entities.put("task", "t1", {**steps, "column": "todo"})
        with pytest.raises(BaseRequired):
            entities.patch("task", "t1", {"column": "doing"})
        entities.patch("task", "t1", {"column": "doing"}, base=1)
        # Their metadata, as compare-and-set only.
        metadata = {"priority": 2, "modelOverrides": {"plan": "m1"}, "documents": ["d/1"]}
        entities.put("task_metadata", "t1", metadata, base=0)
        with pytest.raises(RevisionMoved):
            entities.put("task_metadata", "t1", {"priority": 9}, base=0)
        # Missions and what is below them; never an orphan.
        entities.put("mission", "m", {"title": "Sail"})
        entities.put("milestone", "ms", {"title": "a", "missionId": "m"})
        entities.put("slice", "sl", {"title": "b", "milestoneId": "ms"})
        entities.put("feature", "f", {"title": "c", "sliceId": "sl"})
        with pytest.raises(Orphaned):
            entities.put("slice", "s2", {"title": "b", "milestoneId": "none"})
        # Agents without what is true on one node only, settings without secrets.
        entities.put("agent_definition", "a", {"name": "Ana", "model": "m1"})
        with pytest.raises(BadEntity):
            entities.put("agent_definition", "a", {"name": "Ana", "pid": 7})
        entities.put("project_settings", "project", {"theme": "dark"})
        with pytest.raises(SecretRefused):
            entities.put("project_settings", "project", {"apiKey": "sk-1"})
        assert len(home.order._shared.entries) >= before + 13, "each was decided by the quorum"
        # Runtime state and live events of runs: in no log, so nobody is given them.
        for one in (DataClass.AGENT_RUNTIME, DataClass.RUN_ACTIVITY):
            assert write_class_of(one, voters=True) is WriteClass.LOCAL
        decided, logged = len(home.order._shared.entries), home.node.log.head()
        mesh.telemetry.set("agent", "a", {"pid": 7, "worktree": "/tmp/w"})
        mesh.telemetry.set("run/1", "0001", "step 1 of 3")
        assert home.node.log.head() == logged
        # What came of a run, and the audit streams: appended, in order, whoever is there.
        mesh.audit.append("runAuditEvents", {"run": 1, "outcome": "passed"})
        mesh.audit.append("activityLog", {"did": "deploy"})
        assert all(one.sound and one.gapless for one in mesh.audit.verify())
        # Blobs: the record names the content, which travels beside it.
        mesh.files.share("tasks/t1/prompt.md", b"x" * 100_000)
        assert mesh.files.info("tasks/t1/prompt.md").here
        assert len(home.order._shared.entries) == decided, "none of these asks a quorum"
        classes = {entry.entity: entry.raw for entry in home.node.log.range() if entry.mesh == MESH}
        assert b"append-only" in classes["activityLog"]
        assert b"queued" in classes["tasks/t1/prompt.md"]
