"""Peers on a simulated network: the bus as it runs, on clocks, disks and links from a seed.

    bus            the world: machines, what must hold, the calm at the end
    storm          what goes wrong meanwhile; `traits` draws what a seed is about
    machine        one computer, whose process lives in a loop of its own
    program        what uses the bus there: it reads, answers, sends and asks
    home_machine   one computer with a home, which shares a mesh; `home_program` is its process
    mesh_books     what was written to the mesh, who holds it, who covers it; `mesh_liar` lies
    watched_store  the store of a machine, which takes time and whose answers are written down
    books, tap     what was promised and what came; which numbers were ever given
    net            networks, hosts, and the `Net` of each simulated process
    stream_end     one end of a connection, with everything that can happen to it

The loop under all of it is `simulate/world/loop.py`
(docs/decisions/0066-a-simulated-event-loop-runs-the-real-code.md).
"""
