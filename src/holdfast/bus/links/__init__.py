"""Links to peers: dialled or accepted over TLS, greeted, chosen, kept alive, and ended."""
