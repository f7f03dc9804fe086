"""Format("holdfast"), reading."""
