"""Nodes that pull each other."""
