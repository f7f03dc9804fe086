"""A simulated disk under a real SQLite and real files, with no node above it.

`platter` keeps the books: what is written, what is synced, what a power loss leaves. `call_log`
counts calls and asks a plan of `faults` which ones fail. `vfs` is the door for SQLite, `files` the
door for plain files; `disk` puts them together as `FaultyDisk` and `SimulatedDisk`. Two harnesses
use them: `every_call_fails` fails each call of a workload in turn, `powerloss` cuts the power at
each moment; `workload` has the shape of a workload. Nothing here knows what a node is.
"""
