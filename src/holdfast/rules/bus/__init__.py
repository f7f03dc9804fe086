"""What the peer bus decides: values in, values out.

    signed_envelope   what is signed, and in which order an arrival is checked
    message           what is inside a signed payload
    replay            which numbers and nonces are new: the strict mark, the window, leaps
    discovery         what is said and believed on a local network
    mesh_store        what the bus keeps durably (`MeshStore`), and its values

`holdfast.bus` runs it, `protocol/bus_frames.py` says how it looks on a link.
"""
