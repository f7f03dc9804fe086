"""Forgetting, disk pressure, re-embedding."""
