"""The bus of one node: who its peers are, what it keeps, and its meshes shared without a broker.

`directory` says who is who, from the zones that the node trusts.

Meshes are shared over the bus by `exchange`: one link is `mesh_link`, with `mesh_receive` for what
comes, `mesh_serve` for what goes, `mesh_objects` for content and `mesh_compare` for what differs;
`grants` says who may what, and `backfill` counts what was in the log before a mesh was shared.
"""
