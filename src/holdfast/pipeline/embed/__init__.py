"""Sentence models and re-embedding."""
