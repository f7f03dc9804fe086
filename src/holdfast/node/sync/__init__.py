"""A shared mesh and its broker, kept in step."""
