"""Every kind of log as Arrow batches."""
