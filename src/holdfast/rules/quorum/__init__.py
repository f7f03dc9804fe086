"""What a quorum decides, as pure rules: values in, values out.

An engine (the voters of `raft`, or an etcd) gives every node the same committed envelopes in the
same order, each with its fence. Everything else is decided here, by each node for itself, from that
order alone. `decide` is where an entry comes in, `view` what it may look at and what it writes.
"""
