"""What a node asks its broker over HTTP, one call at a time.

`BrokerClient` (client.py) has a method for each call about meshes, members, invites, destinations,
objects and snapshots; queues.py takes messages from queues, objects.py reads large objects piece by
piece. The documents are those of `protocol/broker_http.py` and `protocol/broker_log_http.py`, which
the broker writes. What flows all the time goes over a WebSocket instead: see `node/sync`.
"""
