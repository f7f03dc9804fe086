"""How bytes travel between machines. Imports nothing of the node."""
