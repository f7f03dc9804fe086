"""The tools of the server for agents: one module for each kind of data.

`declare` says how a tool is declared, `call` what its function may use. `all` is the list, in the
order in which agents see it.
"""
