"""The shapes that two sides share: frames, HTTP documents, log batches, snapshot parts, export
lines.
"""
