"""A large index finds what it should, whatever the vectors look like.

Sketches decide here which vectors are measured, so each kind of data that could mislead them gets
an index of its own. The yardstick is the exact search.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from operator import add, mul
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from holdfast.rules.limits import VECTOR_PREFILTER_FLOATS
from holdfast.rules.vectors import Model, pack
from holdfast.storage.sqlite import migrations, vector_index, vector_sketches
from holdfast.storage.sqlite.connection import connect

DIM = 384
ROWS = VECTOR_PREFILTER_FLOATS // DIM + 200
MODEL = Model(provider="custom", name="recall", dim=DIM)
QUERIES = 25

Vector = list[float]
Maker = Callable[[], Vector]


class Chance:
    """Random vectors, cut from one long row of numbers because drawing each would take minutes."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self._numbers = [self.draw.gauss(0, 1) for _ in range(150_000)]

    def gauss(self, scale: float = 1.0, dim: int = DIM) -> Vector:
        start = self.draw.randrange(len(self._numbers) - dim)
        values = self._numbers[start : start + dim]
        return values if scale == 1.0 else [scale * value for value in values]


def unit(vector: Vector) -> Vector:
    length = math.hypot(*vector)
    return [value / length for value in vector]


def plus(one: Vector, other: Vector) -> Vector:
    return list(map(add, one, other))


def clusters(chance: Chance) -> Maker:
    """Topics within topics, all leaning the same way: as embeddings of texts do."""
    lean = chance.gauss(0.8)
    wide = [plus(lean, chance.gauss()) for _ in range(20)]
    narrow = [plus(chance.draw.choice(wide), chance.gauss(0.7)) for _ in range(400)]
    return lambda: unit(plus(chance.draw.choice(narrow), chance.gauss(0.5)))


def positive(chance: Chance) -> Maker:
    """No coordinate below zero: without a centre, every sketch would be the same."""
    topics = [[abs(value) for value in chance.gauss()] for _ in range(10)]

    def make() -> Vector:
        vector = [0.01] * DIM
        for topic in chance.draw.sample(topics, 4):
            share = chance.draw.expovariate(1.0)
            vector = [value + share * part for value, part in zip(vector, topic, strict=True)]
        return unit(plus(vector, [abs(value) for value in chance.gauss(0.05)]))

    return make


def unrelated(chance: Chance) -> Maker:
    """Every vector about as far from every other: signs say next to nothing."""
    return lambda: unit(chance.gauss())


def lopsided(chance: Chance) -> Maker:
    """Nearly all the distance comes from a few dimensions; the other bits are noise."""
    scale = [3.0 if place < 6 else 0.03 for place in range(DIM)]
    return lambda: list(map(mul, scale, chance.gauss()))


def lengths(chance: Chance) -> Maker:
    """Many lengths, so that what is nearest need not stand in the same direction."""
    near = clusters(chance)

    def make() -> Vector:
        length = chance.draw.choice([0.02, 0.3, 1.0, 4.0])
        return [length * value for value in near()]

    return make


class Case(NamedTuple):
    con: apsw.Connection
    queries: list[bytes]


KINDS = {kind.__name__: kind for kind in (clusters, positive, unrelated, lopsided, lengths)}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Case]]:
    folder, made = tmp_path_factory.mktemp("recall"), dict[str, Case]()

    def case(kind: str) -> Case:
        if kind not in made:
            make = KINDS[kind](Chance(11))
            con = filled(folder / f"{kind}.db", make)
            made[kind] = Case(con, [pack(make(), DIM) for _ in range(QUERIES)])
        return made[kind]

    yield case
    for each in made.values():
        each.con.close()


def filled(path: Path, make: Maker) -> apsw.Connection:
    con = connect(path, sync="normal")
    migrations.migrate(con)
    with con:
        vector_index.ensure_table(con, MODEL, 1)
        for number in range(ROWS):
            vector_index.put(con, MODEL, number, "m", pack(make(), DIM))
    return con


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry per search that asked the sketches: whether they sufficed."""
    told: list[bool] = []
    real = vector_sketches.search

    def search(*args: object, **named: object) -> object:
        found = real(*args, **named)  # type: ignore[arg-type]
        told.append(found is not None)
        return found

    monkeypatch.setattr(vector_sketches, "search", search)
    return told


def recall(case: Case, limit: int) -> float:
    """The share of the truly nearest that a search finds, over all queries."""
    hits = 0
    for query in case.queries:
        truth = vector_index.search(case.con, MODEL, "m", query, limit, exact=True)
        found = vector_index.search(case.con, MODEL, "m", query, limit)
        assert len(found) == len(truth) == limit
        assert found == sorted(found, key=lambda hit: (hit[1], hit[0]))
        hits += len({number for number, _ in found} & {number for number, _ in truth})
    return hits / (limit * len(case.queries))


@pytest.mark.parametrize(
    ("kind", "limit"), [*((kind, 10) for kind in KINDS), ("clusters", 1), ("clusters", 30)]
)
def test_S8_of_a_hundred_nearest_at_most_one_is_missed(
    cases: Callable[[str], Case], kind: str, limit: int
) -> None:
    assert recall(cases(kind), limit) >= 0.99


@pytest.mark.parametrize("kind", ["clusters", "positive"])
def test_S8_most_searches_in_data_with_structure_measure_few_vectors(
    cases: Callable[[str], Case], answers: list[bool], kind: str
) -> None:
    recall(cases(kind), 10)
    assert len(answers) == QUERIES
    assert sum(answers) >= 0.7 * QUERIES


def test_S8_signs_that_say_nothing_are_not_believed(
    cases: Callable[[str], Case], answers: list[bool]
) -> None:
    case = cases("unrelated")
    assert recall(case, 10) == 1.0
    assert answers == [False] * QUERIES


def test_S8_vectors_of_few_dimensions_in_truth_get_no_sketches(
    cases: Callable[[str], Case], answers: list[bool]
) -> None:
    case = cases("lopsided")
    assert case.con.execute("SELECT centre FROM vector_mesh").get == b""
    assert recall(case, 10) == 1.0
    assert answers == []


def test_S8_short_vectors_are_found_though_long_ones_stand_in_the_same_direction(
    tmp_path: Path, answers: list[bool]
) -> None:
    """By signs alone the long ones would be the nearest, by far."""
    chance = Chance(3)
    ahead = unit(chance.gauss())

    def make() -> Vector:
        if chance.draw.random() < 0.02:
            return [3.0 * value for value in unit(plus(ahead, chance.gauss(0.004)))]
        return [0.2 * value for value in unit(chance.gauss())]

    con = filled(tmp_path / "v.db", make)
    query = pack(ahead, DIM)
    assert vector_index.search(con, MODEL, "m", query, 10) == vector_index.search(
        con, MODEL, "m", query, 10, exact=True
    )
    assert answers == [False]
    con.close()


def test_S8_what_was_removed_is_not_found_and_the_next_take_its_place(
    tmp_path: Path, answers: list[bool]
) -> None:
    make = clusters(Chance(4))
    con = filled(tmp_path / "v.db", make)
    query = pack(make(), DIM)
    first = [number for number, _ in vector_index.search(con, MODEL, "m", query, 10, exact=True)]
    with con:
        for number in first:
            vector_index.remove(con, MODEL, number, "m")
    found = vector_index.search(con, MODEL, "m", query, 10)
    assert len(found) == 10
    assert not {number for number, _ in found} & set(first)
    assert answers == [True]
    con.close()


def test_S8_the_sketches_of_another_mesh_do_not_get_in_between(
    tmp_path: Path, answers: list[bool]
) -> None:
    chance = Chance(5)
    make = clusters(chance)
    con = filled(tmp_path / "v.db", make)
    wanted = make()
    query = pack(wanted, DIM)
    alone = vector_index.search(con, MODEL, "m", query, 10)
    with con:
        # First the same kind of vectors, so that the other mesh has about the same centre.
        for number in range(ROWS, ROWS + 1100):
            vector_index.put(con, MODEL, number, "other", pack(make(), DIM))
        for number in range(ROWS + 1100, ROWS + 1400):
            near = pack(unit(plus(wanted, chance.gauss(0.002))), DIM)
            vector_index.put(con, MODEL, number, "other", near)
    assert con.execute("SELECT count(*) FROM vector_mesh WHERE centre <> x''").get == 2
    assert vector_index.search(con, MODEL, "m", query, 10) == alone
    assert answers == [True, True]
    con.close()
