"""The world of zones: links of every shape, and people who pause, remove and add them.

`zones` is the world. `topologies` draws who pulls what from whom, `storm` adds what people and
backups do, and `entitlement` states what each zone must hold, and what none may.
"""
