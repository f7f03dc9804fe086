"""The Delta tables: names, schemas, commits, rounds."""
