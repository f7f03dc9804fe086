"""`holdfast demo`: a story in chapters, on real homes and processes, that checks what it claims.

`demo` plays the `chapters` on a `stage`, which has the folder, the laptops and the broker: each is
one of the `processes` that anybody could start, in a group that ends with the demo (`guard`). The
`screen` shows what happens, a `recording` keeps it. A chapter is a file: `killed`, `lan`,
`wrecked`, `through_broker`, `zone`, `voters`, and `lake` with the process `lake_reading`.
`what_next` ends it. The demo only uses what a user could: the library, the command and processes.
"""
