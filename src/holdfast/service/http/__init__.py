"""The kit that an HTTP API is built from. The calls are in `node/http` and `broker/http`.

A module of an API declares its calls as `Route`s (route). `HttpApp` (app) finds the route of a
request, asks the API who calls, keeps the limits of request.py, runs the handler and turns what it
raises into an answer (errors). strict_json reads bodies; streaming, ranges and arrow_stream write
long answers. From the same declarations come `/openapi.json` (openapi) and the page for people
(docs_page). `parts` is how apps mount what is no call: a console, a server for agents. hello and
metrics are the calls that every service has.
"""
