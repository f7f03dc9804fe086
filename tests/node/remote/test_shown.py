"""What a REPL and a notebook show of a node, with its home open and over a connection."""

from __future__ import annotations

import holdfast
from holdfast.rules.vectors import Model

MODEL = Model(provider="p", name="m:v1", version="1", dim=2)


def test_U1_node_mesh_and_families_say_what_they_are(
    node: holdfast.Node, mesh: holdfast.Mesh
) -> None:
    slug = mesh.slug
    assert repr(mesh) == f"<Mesh {slug}>"
    assert repr(mesh.state) == f"<State of mesh {slug}>"
    assert repr(mesh.inbox) == f"<Inbox of mesh {slug}>"
    assert repr(node.inbox) == "<Inbox of all meshes>"
    assert repr(node).startswith("<Node ana ")
    assert repr(node.log) == "<Log of all meshes>"
    assert repr(node.sharing) == "<Sharing of all meshes>"
    assert repr(mesh.entities) == f"<Entities of mesh {slug}>"
    assert repr(mesh.writes) == f"<WaitingWrites of mesh {slug}>"
    assert repr(mesh.audit) == f"<AuditTrail of mesh {slug}>"
    mesh.state.set("<b>bold</b>", 1)
    assert "&lt;b&gt;bold" in mesh.state._repr_html_()
    assert "<td>&#x27;state&#x27;</td><td>1</td>" in mesh._repr_html_()
    assert "<th>slug</th>" in node._repr_html_(), "its meshes"


def test_U1_every_family_shows_what_is_in_it(node: holdfast.Node, mesh: holdfast.Mesh) -> None:
    mesh.memory.set("k", "remembered")
    mesh.files.share("a.txt", b"content")
    mesh.tasks.create("to do")
    mesh.audit.append("activityLog", {"n": 1})
    mesh.telemetry.set("gauge", "cpu", 0.5)
    mesh.vectors.store("v", [1.0, 0.0], model=MODEL)
    assert "remembered" in mesh.memory._repr_html_()
    assert "a.txt" in mesh.files._repr_html_()
    assert "to do" in mesh.tasks._repr_html_()
    assert "activityLog" in mesh.audit._repr_html_()
    assert "gauge" in mesh.telemetry._repr_html_()
    assert "m:v1" in mesh.vectors._repr_html_()
    assert "ana" in mesh.presence._repr_html_()
    assert "empty" in node.outbox._repr_html_()
    assert "telemetry" not in node.log._repr_html_()
    assert "task.create" in node.log._repr_html_()
    assert f"of mesh {mesh.slug}" in mesh.facts._repr_html_()


def test_U1_a_closed_node_still_shows_what_it_is(tmp_path: object) -> None:
    with holdfast.open(f"{tmp_path}/home", peer="ana", create=True) as node:
        mesh = node.mesh("team", create=True)
        assert repr(node.bus) == "<NodeBus of ana>"
    assert repr(node).startswith("<Node ana at ")
    assert "Closed" in mesh._repr_html_() or "closed" in mesh._repr_html_()
