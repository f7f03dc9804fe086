"""The process that serves a home.

`daemon` opens the home and starts, in this order, its listeners, upkeep, links, syncs, bus and
HTTP server, and ends them in reverse. `upkeep` is its thread that watches the disk and sweeps.
`message_hook` reports messages as events and runs the operator's hook for each.

The room only starts and stops what other rooms do; running until a signal is `service.lifecycle`.
"""
