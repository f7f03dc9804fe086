"""Rules of meshes over the bus: what a stream covers, who tells whom, and who is a member."""
