"""The notebook of the lake, on the Spark of the tests."""

from __future__ import annotations

import warnings

from pyspark.sql import SparkSession

from support.notebooks import NOTEBOOKS, run_notebook


def test_U1_the_notebook_of_the_lake_runs_from_its_first_cell_to_its_last(
    spark: SparkSession,
) -> None:
    (book,) = (book for book in NOTEBOOKS if book.stem == "lake")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, about itself
        assert run_notebook(book) > 5
