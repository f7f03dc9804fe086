"""What the store keeps for the peer bus.

streams   what this node has of each stream of a mesh that is shared over the bus
"""
