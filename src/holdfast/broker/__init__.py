"""A broker: it accepts envelopes from members, gives each a number in its mesh, and hands them on.

What is said on one connection is a **session**: a machine that takes frames and returns effects as
values. The shell around it carries them out.

    WebSocket ─► Connection ─► Session.receive, step ─► effects ─► Connection ─► WebSocket
                     ▲                                     │ Accept
                     │ outcomes                            ▼
                     └───────────────────────────────── Acceptor ─► BrokerStore ─► Wakeups
                                                                                     │
                     every Connection that follows the mesh, takes from the queue ◄──┘

* `session` answers frames and decides what is read together, refused, or ends the connection. Each
  mesh that the member follows has a `feed`, each queue that it takes from a window
  (`queue_delivery`). A push is read in slices (`pushes`) that become `Accept` effects.
* `connection` is the shell: a socket, a task while there is work, and frames that leave together.
  In the simulator the same class runs over a simulated wire.
* `accept` puts what waits into groups of one transaction each; `verdicts` says what became of an
  envelope in the words of the wire; `stamp_check` refuses stamps that no mesh can have given;
  `wakeups` knows which connection an accepted envelope concerns.
* `strangers` knows who was a member lately, and limits what those cost who are none.
* `broker` holds what the connections share; `daemon` starts and stops the process, `upkeep` sweeps,
  `http` answers everything that is no conversation, `operator` is for the person who runs it.
* On PostgreSQL `parent` begins several such processes, and `processes` is what they
  know of each other.

An envelope is acknowledged after its group is committed, and a feed only reads what is committed.
All SQL is in `storage/broker`; what a node does with its broker is in `node/sync`.
"""
