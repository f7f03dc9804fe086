"""Peers that speak with each other without a broker.

    ports       what the rooms here need of each other: links, the network, who is who
    tls_net     the network: TLS 1.3 on TCP
    frame_connection  frames on one connection
    hello       how two peers prove their keys on it
    link        one proved connection: streams, credit, signs of life
    links       all links of a peer: who comes in, and that there is one link to each
    dialling    keeps a link to one wanted peer
    base_store  the calls of a `MeshStore` that can be built from the eight of its own
    discovery   where peers may be, by mDNS
    memory_store  the default store: nothing survives the process

Nothing here reaches a database, not even through another module: a durable store is handed in.
"""
