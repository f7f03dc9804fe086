"""Peers that speak with each other without a broker.

    ports       what the rooms here need of each other: links, the network, who is who
    base_store  the calls of a `MeshStore` that can be built from the eight of its own
    discovery   where peers may be, by mDNS
    memory_store  the default store: nothing survives the process

Nothing here reaches a database, not even through another module: a durable store is handed in.
"""
