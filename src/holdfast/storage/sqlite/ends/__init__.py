"""What a home has put an end to, in SQLite: meshes that were deleted (`mesh_end`)."""
