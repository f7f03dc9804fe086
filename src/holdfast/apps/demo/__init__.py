"""Holdfast demo."""
