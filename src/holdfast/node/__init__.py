"""One node at work: the library that programs use.

A node asks `rules` what follows, saves it through `storage`, and answers only when it is durable.
"""
