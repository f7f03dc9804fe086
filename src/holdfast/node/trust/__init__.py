"""Whom this node trusts, and the key and tokens that it is itself known by.

Two words that are easily mixed up: a **peer** is a name under which a node writes; every stamp and
every envelope carries one, also those of nodes that this node has never met. A **zone** is another
node that this node speaks with directly and knows by its key. A zone's name is its peer name, so
what a zone wrote carries its name as peer; what it only passed on carries others.

`own_key` holds this node's Ed25519 key and its rotation, `tokens` the bearer tokens of people and
programs, `trust` the zones; `trust.Trust` is all three in one object. The room asks `node.core` for
reads and writes. Proving a key in a hello is done by `service.sessions` and `transport`, with the
rules of `rules.keys`.
"""
