"""Whole runs and streams, their sources, status and compaction."""
