"""Where a broker keeps meshes, members, messages and objects.

`port` says what a store must be able to do. Two packages do it, file by file under the same names:
`sqlite`, a folder for one process, and `postgres`, a database for several. What both compute alike
stands here: `refusals` (what is refused, in which words), `accepted` (the answer for a known id).
One suite, tests/contract/broker_store, runs on both. What envelopes and grants mean does not belong
here: `rules` and `holdfast.broker` decide that.
"""
