"""One node: a home that is open, the library that programs use, and the daemon that serves it.

A node asks `rules` what follows, saves it through `storage`, and answers only when it is durable.
Its rooms, from the bottom: `core` runs one write and one arrival; `log`, `messages`, `trust` and
`upkeep` are what a node does with its own store; `home` opens and closes it; `broker_client`,
`snapshots`, `links`, `sharing` and `sync` bring envelopes to and from others; `library` is the face
for programs; `http`, `exchange` and `recovery` use the library; `daemon` runs all of it in one
process. A room asks the rooms below it, never those above; `pyproject.toml` has the order.
`settings` belongs to the daemon.
"""
