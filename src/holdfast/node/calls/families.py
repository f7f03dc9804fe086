"""The families of a mesh as calls: state, memory, vectors, files, tasks, facts,
presence.

The content of files travels as it is, not as JSON: `node/http/library/files.py` and
`node/remote/files.py`.
"""

from __future__ import annotations

from typing import Final

from holdfast.node.calls.declare import Call, Calls, Shape
from holdfast.node.calls.shapes import RECEIPT, TASK, TASK_EVENT, TURN
from holdfast.node.calls.wires import MODEL_TEXT, PLACE
from holdfast.node.core.views import FileInfo, Hit, KeyVersion, Memory, StateEntry
from holdfast.node.library.families import Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.presence import PeerPresence, PeerPresences
from holdfast.rules.errors import (
    BusClosed,
    HasVoters,
    IdReused,
    NoQuorum,
    NoVoters,
    OutcomeUnknown,
    OverLimit,
    RequestCancelled,
    StampMoved,
    TaskEnded,
    TaskTaken,
    Truncated,
    UnknownFile,
    UnknownKey,
    UnknownMesh,
    UnknownObject,
    UnknownTask,
    WriteQueued,
    WrongKey,
)
from holdfast.rules.rows import ModelRow

_MESH: Final = "/v1/meshes/{mesh}"
_PAST: Final = (OverLimit, Truncated)
_DECIDED: Final = (
    *(IdReused, HasVoters, NoQuorum, NoVoters, WriteQueued, OutcomeUnknown, RequestCancelled),
    *(BusClosed, WrongKey),
)
"""What a turn may come to where voters decide."""

_state = Calls(State, _MESH, (UnknownMesh,))
_state.put(
    "/state/{key:path}",
    State.set,
    RECEIPT,
    errors=(IdReused, OverLimit, StampMoved),
    example="""-d '{"value":{"status":"green"}}'""",
)
_state.get(
    "/state/{key:path}",
    State.entry,
    Shape(StateEntry),
    absent=UnknownKey,
    tag=lambda row: str(row.stamp),
    quick=True,
)
_state.delete("/state/{key:path}", State.delete, RECEIPT, errors=(IdReused, StampMoved, UnknownKey))
_state.get("/state", State.list, Shape(StateEntry), "page", place=lambda row: row.key)
_state.get("/as-of/state", State.as_of, Shape(StateEntry), "list", errors=_PAST)
_state.get(
    "/history/state/{key:path}", State.history, Shape(KeyVersion), "list", errors=(OverLimit,)
)

_memory = Calls(Memories, _MESH, (UnknownMesh,))
_memory.put(
    "/memory/{key:path}",
    Memories.set,
    RECEIPT,
    errors=(IdReused, OverLimit, StampMoved),
    example="""-d '{"value":"tea, no milk","tags":["taste"]}'""",
)
_memory.get("/memory/{key:path}", Memories.recall, Shape(Memory), "list", quick=True)
_memory.delete(
    "/memory/{key:path}", Memories.forget, RECEIPT, errors=(IdReused, StampMoved, UnknownKey)
)
_memory.get(
    "/memory",
    Memories.list,
    Shape(Memory),
    "page",
    place=lambda row: (row.peer, row.key),
    wires={"after": PLACE},
)
_memory.get("/as-of/memory", Memories.as_of, Shape(Memory), "list", errors=_PAST)
_memory.get(
    "/history/memory/{key:path}", Memories.history, Shape(KeyVersion), "list", errors=(OverLimit,)
)

_vectors = Calls(Vectors, _MESH, (UnknownMesh,))
_vectors.put(
    "/vectors/{key:path}",
    Vectors.store,
    RECEIPT,
    errors=(IdReused, OverLimit),
    example="""-d '{"embedding":[0.1,0.9],"model":{"provider":"p","name":"m","dim":2}}'""",
)
_vectors.post(
    "/vector-search",
    Vectors.search,
    Shape(Hit),
    "list",
    writes=False,
    errors=(OverLimit,),
    example="""-d '{"query":[0.1,0.9],"model":{"provider":"p","name":"m","dim":2}}'""",
)
_vectors.delete(
    "/vectors/{key:path}",
    Vectors.delete,
    RECEIPT,
    errors=(IdReused, UnknownKey),
    wires={"model": MODEL_TEXT},
)
_vectors.get("/models", Vectors.models, Shape(ModelRow), "list", quick=True)

_files = Calls(Files, _MESH, (UnknownMesh,))
_files.get("/file-info/{path:path}", Files.info, Shape(FileInfo), errors=(UnknownFile,))
_files.delete("/files/{path:path}", Files.delete, RECEIPT, errors=(IdReused, UnknownFile))
_files.get(
    "/files",
    Files.list,
    Shape(FileInfo),
    "page",
    place=lambda row: (row.peer, row.path),
    wires={"after": PLACE},
)

_tasks = Calls(Tasks, _MESH, (UnknownMesh,))
_tasks.post(
    "/tasks",
    Tasks.create,
    TURN,
    errors=_DECIDED,
    example="""-d '{"title":"paint the fence"}'""",
)
_tasks.get("/tasks", Tasks.list, TASK, "page", place=lambda row: row.task)
_tasks.get("/tasks/{task}", Tasks.get, TASK, errors=(UnknownTask,), quick=True)
_tasks.get("/tasks/{task}/events", Tasks.events, TASK_EVENT, "list", errors=(UnknownTask,))
for _verb in (Tasks.claim, Tasks.release, Tasks.complete, Tasks.cancel):
    _tasks.post(
        f"/tasks/{{task}}/{_verb.__name__}",
        _verb,
        TURN,
        errors=(*_DECIDED, UnknownTask, TaskTaken, TaskEnded),
    )

_facts = Calls(Facts, _MESH, (UnknownMesh,))
_facts.post(
    "/facts",
    Facts.append,
    RECEIPT,
    errors=(IdReused, OverLimit, UnknownObject),
    example="""-d '{"subject":"pump:7","predicate":"pressure","object":4.2}'""",
)

_presence = Calls(PeerPresences, _MESH, (UnknownMesh,))
_presence.put(
    "/presence",
    PeerPresences.set,
    RECEIPT,
    errors=(IdReused, OverLimit),
    example="""-d '{"status":"away"}'""",
)
_presence.get("/presence", PeerPresences.list, Shape(PeerPresence), "list", quick=True)

FAMILIES: Final[tuple[Call, ...]] = tuple(
    call
    for calls in (_state, _memory, _vectors, _files, _tasks, _facts, _presence)
    for call in calls()
)
