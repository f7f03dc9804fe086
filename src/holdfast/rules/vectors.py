"""Embedding models and the vectors they make.

Vectors compare only within one model, so the model's identity is part of where they are kept: its
fingerprint names the table. A vector travels and is stored as packed bytes, float32 and
little-endian; packing refuses what could not be compared later (a wrong dimension, NaN, infinity,
a length whose square leaves float32).
"""

from __future__ import annotations

import math
import re
import sys
import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, Final

from holdfast.rules.errors import BadVector, OverLimit
from holdfast.rules.limits import (
    SEARCH_LIMIT_MAX,
    VECTOR_DIM_MAX,
    VECTOR_MODEL_NAME_BYTES_MAX,
    VECTOR_NORM_MAX,
)

FLOAT_BYTES: Final = 4
_TABLE: Final = re.compile(r"vectors_[0-9a-f]{16}")
_NO_TEXT: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and halves of surrogate pairs."""
_SWAPPED: Final = sys.byteorder == "big"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Which embedding model made a vector.

    The fingerprint joins the fields with colons, so at most one of the free fields may hold a
    colon itself, or two models could share a fingerprint. It is the name, since registries use it
    there (`nomic-embed-text:v1.5`): whatever stands between the first colon and the last three is
    the name.
    """

    provider: str
    name: str
    version: str = "unknown"
    dim: int
    quantization: str = "float32"

    def __post_init__(self) -> None:
        _check_text("provider", self.provider, colon=False)
        _check_text("name", self.name, colon=True)
        _check_text("version", self.version, colon=False)
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise BadVector(f"the model's dim is {type(self.dim).__name__}, not an integer")
        if not 1 <= self.dim <= VECTOR_DIM_MAX:
            raise BadVector(f"the model's dim {self.dim} is not between 1 and {VECTOR_DIM_MAX}")
        if self.quantization != "float32":
            raise BadVector(
                f"the model's quantization is {self.quantization!r}",
                hint="only float32 is kept; convert int8 or binary embeddings to floats",
            )

    @property
    def fingerprint(self) -> str:
        """16 hex digits: the same for the same identity on every machine."""
        return _fingerprint(
            f"{self.provider}:{self.name}:{self.version}:{self.dim}:{self.quantization}"
        )


@lru_cache(maxsize=256)
def _fingerprint(identity: str) -> str:
    from hashlib import sha256  # slow to import, and most commands meet no vector

    return sha256(identity.encode()).hexdigest()[:16]


def _check_text(what: str, text: str, *, colon: bool) -> None:
    if not isinstance(text, str):
        raise BadVector(f"the model's {what} is {type(text).__name__}, not text")
    if not text or text != text.strip():
        raise BadVector(f"the model's {what} is empty or has blanks around it: {text!r}")
    if _NO_TEXT.search(text):
        raise BadVector(f"the model's {what} has control characters or half a character: {text!r}")
    if not unicodedata.is_normalized("NFC", text):
        raise BadVector(f"the model's {what} is not NFC-normalised: {text!r}")
    if len(text.encode()) > VECTOR_MODEL_NAME_BYTES_MAX:
        raise BadVector(
            f"the model's {what} has over {VECTOR_MODEL_NAME_BYTES_MAX} bytes",
            hint="give the model a shorter name",
        )
    if not colon and ":" in text:
        raise BadVector(
            f"the model's {what} {text!r} has a colon",
            hint="only the name may have one, or two models could share a fingerprint",
        )


def table_name(fingerprint: str) -> str:
    """The table of a model's vectors. It goes into SQL as it is, so nothing else passes."""
    name = f"vectors_{fingerprint}"
    if _TABLE.fullmatch(name) is None:
        raise BadVector(f"{fingerprint!r} is not the fingerprint of a model")
    return name


# --- packed vectors ----------------------------------------------------------------------------


def pack(embedding: Iterable[float] | memoryview | bytes | bytearray, dim: int) -> bytes:
    """The embedding as stored: little-endian float32.

    Takes any sequence of numbers. What offers its memory (array, NumPy) is read in one go, and
    bytes are taken as packed already.
    """
    if isinstance(embedding, bytes | bytearray) or (
        isinstance(embedding, memoryview) and embedding.format == "B"
    ):
        packed = bytes(embedding)
    else:
        packed = _packed(_numbers(embedding), dim)
    check_packed(packed, dim)
    return packed


def unpack(packed: bytes) -> list[float]:
    return _floats(packed).tolist()


def check_packed(packed: bytes, dim: int) -> None:
    """Raises unless the bytes are a vector of this dimension that can be compared."""
    if len(packed) != dim * FLOAT_BYTES:
        raise BadVector(
            f"the vector has {len(packed)} bytes; {dim} dimensions take {dim * FLOAT_BYTES}",
            hint="the embedding comes from another model, or the model's dim is wrong",
        )
    length = math.hypot(*_floats(packed))
    # Also false for NaN, which any NaN or infinity among the numbers leads to.
    if not length <= VECTOR_NORM_MAX:
        what = "is too long to compare" if math.isfinite(length) else "holds NaN or infinity"
        raise BadVector(f"the vector {what}: its length is {length}")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= SEARCH_LIMIT_MAX:
        raise OverLimit(f"limit {limit} is not between 1 and {SEARCH_LIMIT_MAX}")


def distance(one: bytes, other: bytes) -> float:
    """The Euclidean distance of two packed vectors."""
    return math.dist(_floats(one), _floats(other))


def _floats(packed: bytes) -> array[float]:
    values = array("f")
    values.frombytes(packed)
    if _SWAPPED:
        values.byteswap()
    return values


def _packed(values: array[float], dim: int) -> bytes:
    if len(values) != dim:
        raise BadVector(
            f"the embedding has {len(values)} numbers; the model has {dim} dimensions",
            hint="the embedding comes from another model, or the model's dim is wrong",
        )
    if _SWAPPED:
        values.byteswap()
    return values.tobytes()


def _numbers(embedding: Any) -> array[float]:
    try:
        view = memoryview(embedding)
    except TypeError:
        return _from_iterable(embedding)
    if view.ndim != 1:
        raise BadVector(f"the embedding has {view.ndim} axes", hint="store one vector at a time")
    if view.format == "f":
        values = array("f")
        values.frombytes(view.tobytes())
        return values
    try:
        return _from_iterable(view.tolist())
    except NotImplementedError:
        # A kind of number that memoryview cannot read, as one with swapped bytes; its owner can.
        return _from_iterable(embedding)


def _from_iterable(embedding: Any) -> array[float]:
    try:
        values = list(embedding)
    except TypeError:
        raise BadVector(
            f"the embedding is {type(embedding).__name__}, not a sequence of numbers"
        ) from None
    # The set is one pass in C for the usual case; bool counts as a Real but is no coordinate.
    if not set(map(type, values)) <= {float, int}:
        for value in values:
            if isinstance(value, bool) or not isinstance(value, Real):
                raise BadVector(f"the embedding holds {type(value).__name__}, not only numbers")
    try:
        return array("f", values)
    except OverflowError:
        raise BadVector("the embedding holds a number beyond float32") from None
