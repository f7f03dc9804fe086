"""What follows from what an etcd says: values in, values out.

    faults      what an answer with an error means for the caller
    endpoints   which member is asked next, and after which pause
    versions    which releases can be trusted with an order
    keys        where an order lies in the key space of an etcd
    entry       what is stored of an entry, and of the order as a whole
    payload     the body of an entry: an envelope with its time
    outcome     what became of an append
    standing    whether a node can go on with an incarnation of an order
    coordinating  when a node takes over as the coordinator
    following   from the lines of a watch to the entries of the order, without gap or repetition

An etcd is used as a total order of entries and as nothing else (docs/decisions/0076). The shapes of
its JSON are in `protocol/etcd_json.py`, the calls in `transport/etcd_gateway.py`, and what uses
both is `node/quorum/etcd`.
"""
