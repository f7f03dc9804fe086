"""The world of nodes that pull each other's logs, each from every other one.

Read `nodes` first: it is the world, and the base of the other worlds. `storm` brings faults and
work. `pulling` plays the network between the two ends of a link; `link` holds what both ends do, by
the code of a real node; `link_sources` is the far end of a link for code that waits for answers.
"""
