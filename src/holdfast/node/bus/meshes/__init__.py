"""The store over the bus: members of a mesh compare what they cover and fetch what they lack."""
