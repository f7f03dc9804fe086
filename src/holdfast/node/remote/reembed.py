"""Moving vectors to another model over a connection: the model is here, the vectors are there."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.node.calls.wires import model_name
from holdfast.node.remote.faces import AS_JSON, decoded
from holdfast.node.remote.line import Line
from holdfast.node.upkeep.reembed import ToEmbed, ToEmbedPage
from holdfast.rules.errors import BadVector
from holdfast.rules.limits import MIB
from holdfast.rules.vectors import Model, pack, packed_bytes

_MOVE_BYTES: Final = 2 * MIB
"""Of packed vectors in one request."""


class _Total(msgspec.Struct):
    total: int


class _Moved(msgspec.Struct):
    moved: int


_TOTAL: Final = msgspec.json.Decoder(_Total)
_TEXTS: Final = msgspec.json.Decoder(ToEmbedPage)
_MOVED: Final = msgspec.json.Decoder(_Moved)


class RemoteMoving:
    """`Moving`, asked of a daemon. Each step may be asked for again."""

    def __init__(self, line: Line, mesh: str, old: Model, new: Model) -> None:
        if old == new:
            raise BadVector("the old and the new model are the same")
        self._line, self._path, self._new = line, f"/v1/meshes/{mesh}/reembedding", new
        self._models = {"old": model_name(old, {}), "new": model_name(new, {})}

    def begin(self) -> int:
        found: _Total = self._ask("", _TOTAL)
        return found.total

    def page(self, after: int) -> ToEmbedPage:
        found: ToEmbedPage = self._ask("/texts", _TEXTS, after=after)
        return found

    def move(self, rows: Sequence[ToEmbed], embeddings: Sequence[Any]) -> int:
        new = self._new
        vectors = [
            {
                "key": row.key,
                "id": row.id,
                "embedding": b64encode(pack(embedding, new.dim, new.quantization)).decode(),
            }
            for row, embedding in zip(rows, embeddings, strict=True)
        ]
        most = max(1, _MOVE_BYTES // packed_bytes(new.dim, new.quantization))
        return sum(
            self._ask("/moves", _MOVED, vectors=vectors[begin : begin + most]).moved
            for begin in range(0, len(vectors), most)
        )

    def _ask(self, step: str, decoder: msgspec.json.Decoder[Any], **asked: Any) -> Any:
        body = msgspec.json.encode({**self._models, **asked})
        answer = self._line.call("POST", self._path + step, body=body, headers=AS_JSON)
        return decoded(answer, decoder)
