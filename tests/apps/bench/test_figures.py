"""The README and `holdfast bench` say the same figures: neither is changed alone."""

from __future__ import annotations

import pytest

from holdfast.apps.bench.figures import FIGURES, Figure
from support.project import ROOT

SHOWN = [figure for figure in FIGURES if figure.low is not None]


@pytest.mark.parametrize("figure", SHOWN, ids=lambda figure: figure.what)
def test_U2_the_readme_says_the_figure_that_bench_compares_with(figure: Figure) -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert figure.sentence
    assert figure.sentence in readme


def test_U2_above_one_is_better_than_there() -> None:
    rate = Figure(part="home", what="writes", unit="/s", low=100, high=300)
    time = Figure(part="disk", what="sync", unit="ms", low=0.1, less_is_better=True)
    assert rate.ratio(400) == 2
    assert time.ratio(0.2) == 0.5
    assert Figure(part="home", what="reads", unit="/s").ratio(5) is None
    assert {figure.part for figure in FIGURES} == {"disk", "home", "broker"}
    assert len({figure.what for figure in FIGURES if figure.part != "home"}) == 5
