"""A mesh, or all of a lake, as envelopes, for a node that has nothing of it yet.

There are three kinds of snapshot, and all hold envelopes as their origins wrote them.

A **mesh snapshot** lies at the broker of a shared mesh. `mesh_export` lists the envelopes that a
new member needs, `upload` sends them to the broker part by part, `download` takes them in, and
`jobs` names the rows that say how far both have got.

A **snapshot for a link** is told part by part by the source of a link that has truncated its log
(`link_export`; `node/links/snapshot.py` takes it).

A **snapshot of a lake** is a folder that the pipeline makes. `manifest` says what is in it and who
signed it, `parts` packs and unpacks its files, and `places` remembers where links begin in a home
that was made from it (`node/recovery/restore_snapshot.py` makes that home).

When a snapshot is made or taken is decided elsewhere: by `sharing`, `sync` and `recovery`.
"""
