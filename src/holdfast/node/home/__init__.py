"""Opening, closing and having a home to oneself."""
