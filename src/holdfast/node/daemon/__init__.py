"""The process that serves a home."""
