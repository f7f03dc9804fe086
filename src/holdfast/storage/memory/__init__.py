"""The node's store in dictionaries."""
