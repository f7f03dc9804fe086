"""Holdfast for agents: a server of the Model Context Protocol, over stdio (`holdfast mcp`) and
under `/mcp` of a daemon.

A tool is a function on a node, with its arguments and its answer as types (`tools`); resources,
prompts and completion are functions on a node too (`resources`, `prompts`, `completion`). None has
rules of its own: what a verb of the library refuses, the agent gets as an error with its code and
its hint (`answers`). `server` hands them to the SDK, for the protocol of today and the one before.

What differs between the two ways in is only how a call finds its node (`reach`): over stdio it is a
daemon if one serves the home, else the home itself; over HTTP (`mounted`) it is the daemon's own
API, asked with the token of the caller (`in_process`), so that the token decides what may be done.

Updates of resources come from the log (`feed`, `subscriptions`). `install` writes the server into
the settings of known clients.

The SDK takes half a second to load: only `server`, `stdio`, `mounted` and what they import load it.
"""
