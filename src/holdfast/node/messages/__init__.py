"""Messages: sending, inbox, outbox, expiry."""
