"""Vectors of texts that somebody writes into a form, by our own model, where that is installed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.rules.errors import BadInput
from holdfast.rules.vectors import Model

_one_at_a_time = threading.Lock()
"""The model is loaded once, and a text after the other costs no more than one core."""


def is_there() -> bool:
    """Whether texts can be searched and stored here; nothing is loaded to find out."""
    from holdfast.pipeline.minilm import is_installed

    return is_installed()


async def vector_of(form: Mapping[str, str]) -> tuple[Mapping[str, Any], list[float]]:
    """The model as a call takes it, and the numbers of the field `text`."""
    text = form.get("text", "").strip()
    if not text:
        raise BadInput("text is missing", hint="fill in: text")
    model, numbers = await asyncio.to_thread(_embedded, text)
    return as_call(model), numbers


def as_call(model: Model) -> dict[str, Any]:
    names = ("provider", "name", "version", "dim", "quantization")
    return {name: getattr(model, name) for name in names}


def _embedded(text: str) -> tuple[Model, list[float]]:
    # It brings NumPy, and the weights of the model.
    from holdfast.pipeline.minilm import of_text

    with _one_at_a_time:
        return of_text(text)
