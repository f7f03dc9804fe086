"""The shapes that two sides share: frames, HTTP documents, log batches, snapshot parts, export
lines.

A module declares the structs of one format and encodes, decodes and checks them. It does no I/O and
decides nothing about their content; that is for `rules`.
"""
