"""Every verb of the library as a call over HTTP, declared once.

A declaration (`declare.Call`) names a verb, a method and a path, and says what the answer is. The
rest follows from the signature of the verb: what stands in the path, in the query and in the body,
and how it is written there (`wires`). From the declarations `node/http/library/verbs.py` makes the
routes, and with them `/openapi.json`, `/docs` and the reference; `node/remote` makes the client of
`holdfast.connect`. `families`, `meshes` and `shared` hold the declarations, `shapes` the documents
of what is no plain JSON in the library.

A new verb, or a new argument of one, is added to the library and stands here in one line at most.
"""
