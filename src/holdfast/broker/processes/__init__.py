"""Several processes behind one port, which are one broker.

A parent (`broker.parent`) listens and hands each connection to the process that has the fewest
(`turns`). Each process is a whole broker on the same PostgreSQL, so what they say to each other
here is little: it goes through the parent as `words` on a `line`. `place` is what a process is told
when it begins, `crew` its end of all that. `sessions` makes a session of one good at all,
`gathered` figures of all into those of the broker.
"""
