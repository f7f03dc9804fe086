"""Peers on a simulated network: the bus as it runs, on clocks, disks and links from a seed.

    net         networks, hosts, and the `Net` of each simulated process
    stream_end  one end of a connection, with everything that can happen to it

The loop under all of it is `simulate/world/loop.py`
(docs/decisions/0066-a-simulated-event-loop-runs-the-real-code.md).
"""
