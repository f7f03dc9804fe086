"""Peers that speak with each other without a broker.

    bus           what programs call: send, publish, subscribe, request, serve
    options       how a bus is bound
    received      what programs get: messages, requests, replies, receipts
    status        how a bus stands

    router        takes what links tell to the part that it concerns
    lane          what goes to one peer: read from the outbox, numbered, signed, acknowledged
    settling      what tells a peer which messages may come again
    numbers       the numbers of what is sent
    parcel_intake what comes over one link: checked, stored, acknowledged, handed out
    topic_relay   messages of topics that peers pass on for each other
    topics        who listens to what; `subscription` is one reader, `credit` what it owes a sender
    key_use       whether two processes use one key, and who is told
    requests      what this peer asks, and `serving` what it answers
    announcing    tells peers what is listened to and served here
    context       what all of these share; `guard` makes errors of a store errors of the bus

    ports         what the rooms here need of each other: links, the network, who is who
    static_peers  who is who, from a list
    base_store    the calls of a `MeshStore` that can be built from the eight of its own
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

The path of a message: `send` puts it into the outbox of the store; the lane of the peer numbers and
signs it, with all others that wait, when the link has room; the other side's intake checks it,
stores it in one transaction with the mark and the nonce, and acknowledges; the lane removes it from
the outbox; the subscription hands it to its reader, and the sender gets its credit back.

Nothing here reaches a database, not even through another module: a durable store is handed in.
"""
