"""A node and its brokers: what goes out of shared meshes, what comes in, and who decides when.

One connection with one broker is a **conversation**: a machine that takes events and returns
effects as values. It decides everything and does nothing.

          frames, commits, time, results                effects
    ────────────────────────────────────► Conversation ─────────► Driver ─► EffectPort
        ▲                                  (one connection)                    │
        │                                  MeshConversation                    │ Send, Close
        │                                  (one for each mesh)                 │ StoreWork
        └──────────────── done(effect, result), failed(effect, error) ◄────────┘ BrokerCall

* `conversation` says hello, opens the meshes, hands frames to them, looks at the time, and stops.
* `mesh_conversation` decides about one mesh: what waits together, what is asked again, when an
  answer is late, when a broker sends too much. It has several lines (out, answers, in, objects …);
  each has one effect under way at most, and they do not wait for each other.
* `waiting` counts what was read and is not stored: while that is too much, nothing more is read.
* `effects` are the values; `driver` is the loop, the same in the daemon and in the simulator.
* `connection_port` carries effects out in the daemon: a WebSocket, threads, a timer. Its twin in
  the simulator is `simulate/delivery/node_port`.
* `session` has the steps that touch the store, with `push` (rows out, answers in), `receive` (pages
  in), `epoch` (a broker that went back in time) and `mesh_state` (what a connection remembers).
  `http_side` has the calls to the broker beside the WebSocket.

The order of effects is what makes it safe. A row is marked as in flight before it is sent. A page
is confirmed after it is stored, with its objects. What was in flight when a connection ends is
pending again before the next one begins.

Around it: `terms` keeps what a broker offers and why this node does not work with it. `connection`
keeps one connection up, `manager` has one for each broker, `status` shows
how they stand, `pause` holds a mesh back, `run_once` does the same without a daemon. What does not
belong here: what a broker is asked without a connection (`node/broker_client`), and how a mesh
comes to be shared (`node/sharing`).
"""
