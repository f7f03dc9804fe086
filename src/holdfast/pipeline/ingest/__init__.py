"""Logs into bronze, each envelope once."""
