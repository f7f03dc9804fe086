"""Pulling other nodes' logs."""
