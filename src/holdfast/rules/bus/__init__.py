"""What the peer bus decides: values in, values out.

    signed_envelope   what is signed, and in which order an arrival is checked
    message           what is inside a signed payload
    replay            which numbers and nonces are new: the strict mark, the window, leaps
    mesh_store        what the bus keeps durably (`MeshStore`), and its values
    credit            how much of one stream of a link may be under way
    keepalive         whether the peer at the other end of a link is still there
    link_choice       which of two connections between two peers becomes their link
    dial_plan         when a peer is dialled again
    strangers         whom to drop when too many connections have proved nothing

`holdfast.bus` runs it, `protocol/bus_frames.py` says how it looks on a link.
"""
