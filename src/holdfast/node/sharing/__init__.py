"""Publish, join, leave, members."""
