"""The compiled reader under sanitizers: whatever it gets, it never looks beyond it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from holdfast.rules.envelope import encode
from holdfast.rules.quorum.coordinated import coordinated
from support.plain_facts import FACTS
from support.plain_pushes import PLAIN, push
from support.project import ROOT
from support.quorum_state import change, operation
from support.seeds import seeds

ENTRIES: Final = [
    coordinated("ana", 7, encode(change(operation("put", "mission", id, fields, base=base))))
    for id, fields, base in (
        ("m", {"title": "t"}, None),
        ("m n", {"title": "é", "b": [1, None, {"z": "\n", "a": {}}], "a": -5}, 0),
        ("x" * 256, {"z": {"y": 1, "b": True}, "title": "t" * 300}, 1 << 40),
    )
]
"""Of a quorum."""
ROUNDS: Final = 200_000
MESH: Final = b"team"
OPTIONS: Final = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("fuzz") / "fuzz_compiled"
    rules = ROOT / "src" / "holdfast" / "rules"
    source = ROOT / "tests" / "rules" / "fuzz_compiled.c"
    words = [compiler, *OPTIONS, f"-I{rules}", str(source), "-o", str(made)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        if "sanitize" in done.stderr or "asan" in done.stderr or "ubsan" in done.stderr:
            pytest.skip("the C compiler has no sanitizers")
        pytest.fail(done.stderr)
    return made


@pytest.mark.parametrize("seed", seeds(1))
def test_D4_no_harm_of_a_push_leads_the_compiled_reader_beyond_it(
    program: Path, tmp_path: Path, seed: int
) -> None:
    plain = [raw for raw in PLAIN if len(raw) < 1000]
    inputs = [*FACTS, *plain, *(push([raw]) for raw in plain), push(plain), push([]), *ENTRIES]
    corpus = tmp_path / "corpus"
    corpus.write_bytes(b"".join(len(raw).to_bytes(4, "big") + raw for raw in inputs))
    words = [str(program), str(corpus), str(ROUNDS), str(seed)]
    # Where memory may not be traced, leaks cannot be looked for; there is nothing to leak.
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    # A plain one is taken by itself, in a push and in that of all; a fact in columns besides.
    facts = sum(b"fact.append" in raw for raw in plain)
    taken = len(ENTRIES) + 5 * len(plain) + facts + sum(2 if MESH in raw else 1 for raw in FACTS)
    assert done.stdout == f"{taken} good\n", "all of them are taken before they are harmed"
