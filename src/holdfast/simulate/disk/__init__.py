"""A disk that counts, fails and forgets."""
