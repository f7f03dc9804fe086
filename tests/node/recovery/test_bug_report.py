"""The report of a home tells what it takes to mend a fault, and nothing of its user's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast.node.recovery.bug_report import bug_report
from holdfast.node.trust.trust import Trust
from holdfast.storage.files.home import HomePaths

PLANTED = "planted7secret"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home in which every name and value has a word in it that must not get out."""
    home = tmp_path / PLANTED
    with holdfast.open(home, peer=f"{PLANTED}-peer", create=True) as node:
        mesh = node.create_mesh(f"{PLANTED}-mesh")
        mesh.state.set(f"{PLANTED}-key", PLANTED)
        mesh.memory.set(PLANTED, PLANTED, tags=[PLANTED])
        mesh.files.share(f"{PLANTED}.txt", PLANTED.encode() * 10_000)
        mesh.tasks.create(PLANTED, description=PLANTED)
        node.log.add_consumer(f"{PLANTED}-reader")
        Trust(node._engine, HomePaths(home)).add_token(PLANTED)
    return home


def environment(folder: Path) -> dict[str, str]:
    settings = folder / "settings.toml"
    settings.write_text(
        f'hook_message = ["{PLANTED}"]\ndisk_limit = "20 GiB"\nsocket = true\n'
        f'[bus]\nlisten = "127.0.0.1:7000"\n'
    )
    return {"HOLDFAST_CONFIG": str(settings), "HOLDFAST_MESH": PLANTED, "OTHER": PLANTED}


def test_Q11_nothing_of_the_user_gets_into_a_report(home: Path, tmp_path: Path) -> None:
    report = bug_report(home, environment(tmp_path))
    text = json.dumps(report)
    assert PLANTED not in text
    assert str(tmp_path) not in text
    for key in (home / "identity.key").read_bytes(), (home / "ballast").name.encode():
        assert key.hex() not in text
    assert "127.0.0.1" not in text
    assert report["environment"] == ["HOLDFAST_CONFIG", "HOLDFAST_MESH"]
    assert report["settings"] == {
        "hook_message": "set",
        "disk_limit": "set",
        "bus": {"listen": "set"},
    }


def test_U2_a_report_says_what_it_takes_to_mend_a_fault(home: Path) -> None:
    report = bug_report(home, {})
    assert report["versions"]["holdfast"] == holdfast.__version__
    assert {"python", "sqlite", "apsw", "msgspec", "uvicorn"} <= set(report["versions"])
    (mesh,) = report["node"]["meshes"]
    assert (mesh["rows"]["state"], mesh["rows"]["file"]) == (1, 1)
    assert report["node"]["log"]["last"] == 4
    assert {"name": "database", "status": "ok"} in report["checks"]
    assert report["files"]["data.db"]["mode"] == "600"


def test_S12_a_home_that_cannot_be_opened_has_a_report_too(home: Path, tmp_path: Path) -> None:
    (home / "data.db").write_bytes(PLANTED.encode() * 1000)
    report = bug_report(home, {"HOLDFAST_CONFIG": str(tmp_path / "none")})
    assert PLANTED not in json.dumps(report)
    assert set(report["node"]) == {"error"}
    assert "fail" in {check["status"] for check in report["checks"]}
    assert set(report["settings"]) == {"error"}
    assert bug_report(tmp_path / "nowhere", {})["node"] == {"error": "no_home"}
