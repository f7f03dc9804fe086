"""What programs import: Node, Mesh, the families, sync and async."""
