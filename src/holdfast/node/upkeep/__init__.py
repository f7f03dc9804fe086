"""What a node does to stay healthy: forgetting (`sweep`), watching the disk (`disk`), moving
vectors to another embedding model (`reembed`), deleting a mesh (`delete_mesh`).

The functions here do one pass each. When a pass is due, `node.daemon.upkeep` decides, or a user who
runs a command. What may be forgotten, and when a disk counts as full, is in `rules.retention` and
`rules.disk_pressure`.
"""
