"""Finding peers on the local network. What is found is a candidate: the hello of a link decides.

    mdns         `MdnsDiscovery`: says where we are, listens for peers that we look for
    responder    one instance of zeroconf, the only module that knows that library; loaded when used
    interfaces   the addresses of this machine, and a word when they change

A list of addresses that people give needs nothing of this: it stands in the `PeerDirectory`, as
do the places where a peer was reached before. `rules/bus/links/discovery.py` decides what is said
and what is believed.
"""
