"""What a node answers over HTTP: one module per kind of call.

A module has `routes`, to which decorators add its calls; `app` puts them into one list. A
handler reads the request, calls the library or another room, and returns the answer. It decides
nothing about the log. `context` has what handlers may reach (`NodeApi`) and who makes a call.
`library/` serves the verbs of the library, as `node/calls` declares them. `append` is for facts and
`changes` for every op that `node/library/documents.py` knows, one or `many` to a request; `facts`,
`ranges`, `consumers` and `events` for reading the log; `send`, `inbox` and `outbox` for messages;
`status`, `health`, `metrics` and `digests` for those who watch the node; `links`, `brokers` and
`objects` for the rest.

Routes, limits, errors, streaming and OpenAPI come from `service.http`, which the broker uses too.
"""
