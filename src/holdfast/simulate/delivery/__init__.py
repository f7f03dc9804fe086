"""Nodes and a broker."""
