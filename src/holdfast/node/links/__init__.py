"""Links: this node pulls the log of another node, its zone, and takes it in.

A link is a row in the store; registry.py adds, pauses and removes it, with or without a daemon. In
the daemon `LinkManager` (worker.py) has a unit of the supervisor for each row. One attempt of a
unit is a `LinkConnection` (connection.py): it registers at the source, makes sure that the log is
still the one it has read (same_log.py), and then fetches, reads and stores batches in three threads
until something breaks; after a break it asks for less (appetite.py). receive.py stores a batch with
its cursor in one transaction. `rules.links` decides what follows from an error. status.py is what
people and metrics see. pull.py is for those who want one pull now, and wait for it.
snapshot.py makes up for what a source has truncated.

The other end is a `LinkSource` (source.py): over TLS it is `transport.peer_client.PeerClient`.
Meshes that are shared through a broker are not pulled here: see `node/sync`.
"""
