"""Embedding models and the vectors they make.

Vectors compare only within one model, so the model's identity is part of where they are kept: its
fingerprint names the table. A vector travels and is stored as packed bytes; packing refuses what
could not be compared later: a wrong dimension, NaN, infinity, a length whose square leaves float32.

How the numbers are kept, the **quantization**, is a part of the model too:

    float32   four bytes each, little-endian           nearness is the Euclidean distance
    int8      one byte each, -128 to 127               the same
    binary    one bit each, the first highest in its   how many bits differ
              byte; the dimension is a multiple of 8

Nothing is converted: a provider that gives int8 or bits is stored as it gives them, and a query is
of the same kind.
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
from typing import Any, Final, Literal, get_args

from holdfast.rules.errors import BadVector, OverLimit
from holdfast.rules.limits import (
    SEARCH_LIMIT_MAX,
    VECTOR_DIM_MAX,
    VECTOR_MODEL_NAME_BYTES_MAX,
    VECTOR_NORM_MAX,
)

Quantization = Literal["float32", "int8", "binary"]
QUANTIZATIONS: Final = get_args(Quantization)
FLOAT_BYTES: Final = 4
BYTE_BITS: Final = 8
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
        if self.quantization not in QUANTIZATIONS:
            raise BadVector(
                f"the model's quantization is {self.quantization!r}",
                hint=f"use one of: {', '.join(QUANTIZATIONS)}",
            )
        if self.quantization == "binary" and self.dim % BYTE_BITS:
            raise BadVector(
                f"the model's dim {self.dim} is no multiple of {BYTE_BITS}, as bits fill bytes",
                hint="dim counts bits, not bytes",
            )

    @property
    def packed_bytes(self) -> int:
        """The size of a vector."""
        return packed_bytes(self.dim, self.quantization)

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


def packed_bytes(dim: int, quantization: str) -> int:
    if quantization == "binary":
        return dim // BYTE_BITS
    return dim if quantization == "int8" else dim * FLOAT_BYTES


def shown_dim(embedding: Any, quantization: str) -> int:
    """The dimension that an embedding shows by its length, packed or as numbers."""
    if not isinstance(embedding, bytes):
        return len(embedding)
    if quantization == "binary":
        return len(embedding) * BYTE_BITS
    return len(embedding) // (1 if quantization == "int8" else FLOAT_BYTES)


def pack(
    embedding: Iterable[float] | memoryview | bytes | bytearray,
    dim: int,
    quantization: str = "float32",
) -> bytes:
    """The embedding as stored: little-endian float32, bytes, or bits.

    Takes any sequence of numbers: as many as the model has dimensions; for bits, zeros and ones.
    What offers its memory (array, NumPy) is read in one go, and bytes are taken as packed already.
    """
    if isinstance(embedding, bytes | bytearray) or (
        isinstance(embedding, memoryview) and embedding.format == "B"
    ):
        packed = bytes(embedding)
    elif quantization == "float32":
        packed = _packed(_numbers(embedding), dim)
    else:
        packed = _packed_whole(embedding, dim, quantization)
    check_packed(packed, dim, quantization)
    return packed


def unpack(packed: bytes, quantization: str = "float32") -> list[float] | list[int]:
    if quantization == "binary":
        bits = int.from_bytes(packed)
        return [int(bit) for bit in f"{bits:0{len(packed) * BYTE_BITS}b}"] if packed else []
    if quantization == "int8":
        return array("b", packed).tolist()
    return _floats(packed).tolist()


def check_packed(packed: bytes, dim: int, quantization: str = "float32") -> None:
    """Raises unless the bytes are such a vector, which can be compared."""
    size = packed_bytes(dim, quantization)
    if len(packed) != size:
        raise BadVector(
            f"the vector has {len(packed)} bytes; {dim} dimensions of {quantization} take {size}",
            hint="the embedding comes from another model, or the model's dim is wrong",
        )
    if quantization != "float32":
        return  # every byte means something
    length = math.hypot(*_floats(packed))
    # Also false for NaN, which any NaN or infinity among the numbers leads to.
    if not length <= VECTOR_NORM_MAX:
        what = "is too long to compare" if math.isfinite(length) else "holds NaN or infinity"
        raise BadVector(f"the vector {what}: its length is {length}")


def check_limit(limit: int) -> None:
    if not 1 <= limit <= SEARCH_LIMIT_MAX:
        raise OverLimit(f"limit {limit} is not between 1 and {SEARCH_LIMIT_MAX}")


def distance(one: bytes, other: bytes, quantization: str = "float32") -> float:
    """How far two packed vectors are apart: the Euclidean distance, or how many bits differ."""
    if quantization == "binary":
        return float((int.from_bytes(one) ^ int.from_bytes(other)).bit_count())
    if quantization == "int8":
        return math.dist(array("b", one), array("b", other))
    return math.dist(_floats(one), _floats(other))


def _floats(packed: bytes) -> array[float]:
    values = array("f")
    values.frombytes(packed)
    if _SWAPPED:
        values.byteswap()
    return values


def _packed(values: array[float], dim: int) -> bytes:
    _check_count(len(values), dim)
    if _SWAPPED:
        values.byteswap()
    return values.tobytes()


def _check_count(count: int, dim: int) -> None:
    if count != dim:
        raise BadVector(
            f"the embedding has {count} numbers; the model has {dim} dimensions",
            hint="the embedding comes from another model, or the model's dim is wrong",
        )


def _packed_whole(embedding: Any, dim: int, quantization: str) -> bytes:
    """Whole numbers as bytes, or zeros and ones as bits."""
    values = _whole_numbers(embedding)
    _check_count(len(values), dim)
    lowest, highest = (0, 1) if quantization == "binary" else (-128, 127)
    if min(values) < lowest or max(values) > highest:
        raise BadVector(
            f"a vector of {quantization} holds whole numbers from {lowest} to {highest}, and "
            "this one holds others",
            hint="the embedding is of another quantization; nothing is converted here",
        )
    if quantization == "int8":
        return array("b", values).tobytes()
    return int("".join(map(str, values)), 2).to_bytes(dim // BYTE_BITS)


def _whole_numbers(embedding: Any) -> list[int]:
    """Also as floats without a fraction, as JSON and NumPy may have them, and as true and false."""
    values = embedding.tolist() if hasattr(embedding, "tolist") else embedding
    try:
        listed = list(values)
    except TypeError:
        raise BadVector(
            f"the embedding is {type(embedding).__name__}, not a sequence of numbers"
        ) from None
    try:
        whole = [int(value) for value in listed]
    except (TypeError, ValueError, OverflowError):
        raise BadVector("the embedding does not hold whole numbers only") from None
    if whole != listed:
        raise BadVector("the embedding does not hold whole numbers only")
    return whole


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
