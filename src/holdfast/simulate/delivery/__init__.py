"""Worlds of delivery: nodes that share meshes through a broker, and everything that goes wrong.

Both sides run their own code here. Only the outermost shells are played, with delays, losses and
deaths that the seed draws:

    node                                                    broker
    Conversation + Driver (node/sync)                       Connection + Session (broker)
         │ effects                                               ▲ frames
         ▼                                                       │
    NodePort (node_port) ── Send ─► Wire (wires) ─► WireEnd (broker_machine)
         │ StoreWork: the node's simulated disk                  │ the broker's simulated disk
         └ BrokerCall: calls that get lost (calls) ──────────────┘

* `delivery` is the world and its command; `broker_world` is the part of it that reaches the broker;
  `traits` is what the seed draws before the story begins.
* `node_end` is a node through its lives and connections, `node_port` one of its connections;
  `broker_machine` is the broker's computer.
* `storm` brings bad times, `copies` go back in time, `time` lets everybody sleep, `publish` shares
  a mesh meanwhile, `workload` and `queues` are what people do.
* What a node makes of a close code, and how long it waits then, is not played: `node_end` takes
  every end of a connection for a lost one, and comes back.
* `books` states what must hold at every moment, `calm` what must hold in the end.

What belongs here is what a world is made of. A promise about delivery is stated in `books` or
`calm`; a bug that must be found is planted in tests/faults.
"""
