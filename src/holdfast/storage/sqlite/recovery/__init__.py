"""What is done to a damaged or half-written SQLite database."""
