"""A key lies in the same bucket for ever, and more buckets only cut what there was."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.pipeline.fold.buckets import buckets_in, key_hashes, places_of, scaled
from holdfast.pipeline.fold.spark_hash import hashed
from holdfast.pipeline.lake.schema import KEYS

pytestmark = pytest.mark.timeout(400)

NUMBERS = st.sampled_from([64, 128, 1024, 4096])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0xEF46DB3751D8E999), ("a", 0xD24EC4F1A98C6E5B), ("abc", 0x44BC2CF5AD770999)],
)
def test_P3_the_hash_gives_the_known_values_of_xxh64(text: str, expected: int) -> None:
    assert hashed(pa.array([text]), np.zeros(1, np.uint64)).tolist() == [expected]


def test_P3_a_key_falls_into_the_bucket_that_spark_gave_it(spark: SparkSession) -> None:
    rng = random.Random(11)
    letters = "ab/-é漢\U0001f40d"
    texts = [
        tuple("".join(rng.choices(letters, k=rng.randrange(30))) for _ in KEYS["memory"])
        for _ in range(2_000)
    ]
    rows = pa.table(dict(zip(KEYS["memory"], zip(*texts, strict=True), strict=True)))
    frame = spark.createDataFrame(rows).select(F.xxhash64(*KEYS["memory"]).alias("hash"))
    expected = [row.hash for row in frame.collect()]
    columns = [rows[key] for key in KEYS["memory"]]
    assert key_hashes(columns).view(np.int64).tolist() == expected
    coarse = [hash % 64 for hash in expected]
    assert buckets_in(key_hashes(columns), 64).tolist() == coarse
    # Pieces begin somewhere within their buffers; some columns are read as dictionaries.
    pieces = [pa.chunked_array([column.chunk(0)[:77], column.chunk(0)[77:]]) for column in columns]
    assert key_hashes(pieces).view(np.int64).tolist() == expected
    few = [column.dictionary_encode() for column in pieces]
    assert key_hashes(few).view(np.int64).tolist() == expected
    same = pa.chunked_array([[f"key {number:06}" for number in range(500)]])
    alone = [key_hashes([same.slice(at, 1)])[0] for at in range(500)]
    assert key_hashes([same]).tolist() == alone


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1), NUMBERS, NUMBERS)
def test_P3_buckets_of_another_number_are_neighbours(
    hashes: list[int], one: int, other: int
) -> None:
    found = np.array(hashes, np.uint64)
    for bucket, there in zip(buckets_in(found, one), buckets_in(found, other), strict=True):
        assert there in scaled(range(bucket, bucket + 1), one, other)
    places = places_of(found, one)
    assert len(set(places.tolist())) == len(set(hashes))
    order = np.argsort(places)
    assert (np.diff(buckets_in(found, one)[order]) >= 0).all()
    assert scaled(range(one), one, other) == range(other)
