"""What the peer bus decides: values in, values out.

    signed_envelope   what is signed, and in which order an arrival is checked
    message           what is inside a signed payload
    replay            which numbers and nonces are new: the strict mark, the window, leaps
    coverage          what a node has of a stream, and what another one has that it lacks
    streams           what is kept of a stream, and whether two nodes have the same
    spread            how a change reaches every node about once
    capability        rights that are shown, end, and narrow when they are passed on
    scope             what a capability is for
    discovery         what is said and believed on a local network
    mesh_store        what the bus keeps durably (`MeshStore`), and its values
    acceptance        which arrivals of one sender are new, sent again, or replays
    known_ids         the ids that came, as far as memory has room
    topic_pattern     which topics a subscription takes
    batching          how many messages go into one parcel, and what is checked in a thread
    refusal           what follows when a peer refuses a message
    reply_book        replies that were given, while somebody may ask for them again
    anycast           which peer a request goes to that names none
    credit            how much of one stream of a link may be under way
    keepalive         whether the peer at the other end of a link is still there
    link_choice       which of two connections between two peers becomes their link
    dial_plan         when a peer is dialled again
    strangers         whom to drop when too many connections have proved nothing
    acceptance        which arrivals of one sender are new, sent again, or replays
    known_ids         the ids that came, as far as memory has room

`holdfast.bus` runs it, `protocol/bus_frames.py` says how it looks on a link.
"""
