"""The quorums of a home over HTTP.

Our own calls stand below `/v1/meshes/{mesh}/quorum`, for programs of this node's user:

    operators    status, voters, coordinator, recovery
    strong       intents, confirmed reads, waiting for a lease; replay of writes that wait
    entities     put, patch, delete, get, list, history; leases as they are committed
    waiting      writes that found no quorum, conflicts that need a decision

Audit streams and what stays on this node, which need no voters, are `audit` and `telemetry`. What
was committed is read by nodes without a vote, and by the lake, in `commits`.

The routes of the source document stand below `/api`, with its field names, for other nodes:

    mesh_sync    envelopes in, the state of the mesh out
    nodes        who is there; auth material to another node
    settings     settings of the project; auth material in and out

`held` finds the quorums of the daemon for all of them, `access` says who may use the source's
routes, `figures` has what `/metrics` tells.
"""
