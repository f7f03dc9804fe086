"""What the peer bus keeps in SQLite.

mesh_store  the durable `MeshStore`
rows        its tables, as a part of every reader and transaction
nonce_ring  the nonces, in memory as they lie in the database
mark        what is noted outside the database, and when a database is doubted
resealing   opening and changing the keys at rest
streams     what this node has of each stream of a mesh that is shared over the bus
"""
