"""The test vectors that clients in other languages build on: in the package, and as the code is."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from support.project import ROOT

FILES = sorted(
    path.name
    for path in (resources.files("holdfast.protocol") / "vectors").iterdir()
    if path.name.endswith(".json")
)


def test_D3_the_vectors_say_what_the_code_does() -> None:
    check = [sys.executable, str(ROOT / "tools" / "vectors.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}run: tools/vectors.py"


@pytest.mark.parametrize("name", FILES)
def test_D3_every_file_of_vectors_explains_itself_and_is_named_in_the_pages(name: str) -> None:
    found: dict[str, Any] = json.loads(
        (resources.files("holdfast.protocol") / "vectors" / name).read_text("utf-8")
    )
    assert (found.get("what") or found.get("about") or "").strip()
    assert len(found["vectors"]) >= 3
    assert name in (ROOT / "docs" / "protocol" / "README.md").read_text("utf-8")


def test_D3_the_pages_name_no_file_of_vectors_that_is_not_there() -> None:
    for page in sorted((ROOT / "docs" / "protocol").glob("*.md")):
        for word in page.read_text("utf-8").split("`"):
            if word.endswith(".json") and "/" not in word and " " not in word:
                assert word in FILES or word == "openapi.json", f"{Path(page).name}: {word}"
