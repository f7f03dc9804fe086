"""Sharing a mesh through a broker: what a node does once, when a person asks for it.

`sharing` has the verbs (`node.sharing`), and asks the broker for each. `publish` makes a personal
mesh a shared one, in phases that survive a crash; `join` takes part in a mesh by an invite; `leave`
makes it personal again, and after that it may be joined once more (`rejoin`). What happens all the
time afterwards, sending and receiving, is `node.sync`.
"""
