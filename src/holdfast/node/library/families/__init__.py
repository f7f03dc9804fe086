"""The library's families, for callers that wait: `mesh.memory`, `.state`, `.vectors`, `.files`,
`.tasks`, `.facts`, `.audit`.

`keyed` has those that keep the newest under a key; `streams` those whose entries stay, one after
the other. `family` is what all are made of. The example of each verb is run by the tests.
"""

from holdfast.node.library.families.keyed import Files, Memories, State, Vectors
from holdfast.node.library.families.streams import AuditTrail, Facts, Tasks

__all__ = ["AuditTrail", "Facts", "Files", "Memories", "State", "Tasks", "Vectors"]
