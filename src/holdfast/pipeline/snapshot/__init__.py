"""Snapshots of the lake that start a node."""
