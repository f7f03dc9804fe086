"""What every simulated world is made of, whatever its nodes do with each other.

`world` is calendar, clocks and chance. `loop` lets plain asyncio run on it. `machine` is one
computer: a simulated disk, a clock that jumps, and a real node on it. `network` delays, loses and
doubles messages. `workload` draws random work. `promises`, `log_history` and `invariants` say what
must hold: for callers, for a log over time, and inside of one node. `seeds` says how a failing run
is played again. How nodes exchange their changes belongs in the worlds above: `nodes`, `zones`,
`delivery`, `bus`.
"""
