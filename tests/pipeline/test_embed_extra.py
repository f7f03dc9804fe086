"""What the extra `embed` brings to those who install it from an index."""

from __future__ import annotations

import importlib.metadata
import tomllib

from packaging.requirements import Requirement

from support.project import ROOT

HEAVY = {"torch", "sentence-transformers", "transformers"}


def test_P7_the_extra_for_sentences_brings_no_torch() -> None:
    """Exemptions in our pyproject.toml do not count elsewhere: the wheels say what comes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting, seen = list(project["optional-dependencies"]["embed"]), set[str]()
    while waiting:
        wanted = Requirement(waiting.pop())
        if wanted.name in seen or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        seen.add(wanted.name)
        if wanted.name not in HEAVY:
            waiting += importlib.metadata.requires(wanted.name) or []
    assert {"numpy", "safetensors", "tokenizers"} <= seen
    assert not seen & HEAVY
