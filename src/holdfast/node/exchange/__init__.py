"""A home as text, and back."""
