"""`holdfast demo`: two peers part, meet, die and come back, on real homes and real processes.

`demo` plays the story of the two nodes, `delivery` its part with a broker, `pipeline` its part with
Spark. The demo only uses what a user could: the library, the command and processes.
"""
