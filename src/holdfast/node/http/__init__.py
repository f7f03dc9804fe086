"""What a node answers over HTTP: a frame that every call passes, and one module per kind of call.

A module that serves calls has `routes() -> list[Route]`. It decides nothing about the log: it
reads what was asked for, calls the library, and writes the answer.
"""
