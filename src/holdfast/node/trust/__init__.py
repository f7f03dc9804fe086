"""Whom this node trusts, and its own keys and tokens."""
