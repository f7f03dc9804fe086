"""What decides strong writes for a node: engines that put entries into one order.

An engine appends an entry once, tells how far its order has come, and gives every node the entries
in the same order, each with what its fence is made of. What entries mean is decided elsewhere, by
the same rules on every node. `etcd` is the engine for those who run an etcd already.
"""
