"""Messages to other members of a shared mesh: sending, the inbox and the outbox.

A message is an envelope with the op `message.send`. `send` checks it and writes it, as any other
change, into this node's log and its outbox (the rows of `rules.outbox`). From there `node.sync`
pushes it to the broker. What the broker brings, `node.core.intake` takes in and lists in the inbox;
`inbox` reads it. `outbox` is for operators: what waits, what failed, retry, requeue, drop. `expiry`
gives up messages that are older than the broker's memory of ids.

What decides about a row (order, refusals, policies) is in `rules.outbox`. This room asks
`node.core` to write, and never a broker.
"""
