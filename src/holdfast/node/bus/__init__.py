"""The bus of one node: who its peers are, what it keeps, and its meshes shared without a broker.

`directory` says who is who from the zones that the node trusts, `member_peers` from the members of
its meshes; `home_directory` joins both. `host` binds the bus of a home and lets it go; `holder`
says which process that is. `api` is what programs of the home can do with it: `local` does it in
the process that holds the bus, `remote` asks the daemon (`documents` are the JSON between them,
`event_stream` reads its events). `standing` is how the bus stands.

Meshes are shared over the bus by `exchange`: one link is `mesh_link`, with `mesh_receive` for what
comes, `mesh_serve` for what goes, `mesh_objects` for content and `mesh_compare` for what differs;
`grants` says who may what, and `backfill` counts what was in the log before a mesh was shared.
"""
