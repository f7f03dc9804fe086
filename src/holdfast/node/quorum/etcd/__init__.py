"""The order of a mesh in an etcd (docs/decisions/0076, 0083).

    orders         all orders of this node that an etcd holds, and where each etcd is
    operators      begin, join, hand over, recover
    order          one of them as strong writes and reads see it: a `MeshOrder`
    order_fold     its entries into this node's store, and who waits for that
    coordination   who coordinates: signs of life, and taking over
    transactions   the requests that append, coordinate and forget
    engine         begin an order, coordinate, append, give up, and how far the order has come
    follower       all entries from a point on, in order, each once
    forgetting     remove what every node has, in bounded steps
    cluster        who the members of the etcd are, and how they are

What follows from an answer is decided in `rules/etcd`; calls go through
`transport/etcd_gateway.py`.
"""
