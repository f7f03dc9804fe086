"""The HTTP API of a broker: one module for each kind of call, with its routes and its handlers.

app.py lists the modules and answers the most frequent call, handing in an envelope, without the
framework. context.py is what handlers may reach, and how they learn who calls. Documents that a
node reads are declared in `protocol`; those that only people and their scripts read stand beside
their call. The WebSocket is not here: see `broker/connection.py`.
"""
