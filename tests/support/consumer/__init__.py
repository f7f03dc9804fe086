"""A program of a user, with types throughout: every family, as callers that wait and as coroutines.

`tests/node/library/test_types.py` runs what needs nobody else, and has all of it checked by mypy
and pyright, outside the repository, as they check any program that has Holdfast installed.
"""
