"""What Spark says in two pages is told in one sentence."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from holdfast.pipeline.spark.failures import failure, spark_errors
from holdfast.rules.errors import DiskFull, HoldfastError, JobFailed, Truncated, Unreachable

STAGE = "Job aborted due to stage failure: Task 1 in stage 3.0 failed 1 times\n"
WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 15, in read
    raise Unreachable("the first try")
holdfast.rules.errors.Unreachable: the first try

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
holdfast.rules.errors.Unreachable: offsets 1 to 9 in epoch 1 of log 'ana' at http://a: it is away
"""


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (WORKER, Unreachable, "offsets 1 to 9 in epoch 1 of log 'ana' at http://a: it is away"),
        ("holdfast.rules.errors.Truncated: it is gone", JobFailed, "it is gone"),
        ("x\nholdfast.rules.errors.Nonsense: it is odd", JobFailed, "Nonsense: it is odd"),
        (f"{STAGE}java.io.IOException: No space left on device", DiskFull, "no room left"),
        (f"{STAGE}x\nCaused by: java.io.IOException: cut", JobFailed, "ingest failed: cut"),
        ("Traceback\nValueError: boom\n", JobFailed, "ingest failed: ValueError: boom"),
        ("[SOME.CODE] It is wrong. SQLSTATE: 42601\nplan", JobFailed, "failed: It is wrong."),
        ("", JobFailed, "does not say why"),
    ],
)
def test_P11_the_cause_is_found_in_what_spark_says(
    text: str, kind: type[HoldfastError], said: str
) -> None:
    found = failure("ingest", PySparkException(text))
    assert type(found) is kind
    assert said in found.message
    assert "\n" not in found.message


def test_P11_an_error_that_needs_more_than_words_is_still_told() -> None:
    with pytest.raises(JobFailed, match="it is gone"), spark_errors("x"):
        raise PySparkException("holdfast.rules.errors.Truncated: it is gone")
    with pytest.raises(Truncated), spark_errors("x"):
        raise Truncated("ours passes as it is", first_available=3)


def test_P11_an_endless_cause_is_cut() -> None:
    assert len(failure("x", PySparkException("ValueError: " + "y" * 10_000)).message) < 600
