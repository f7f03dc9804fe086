"""A Spark session, its Java, and errors in one sentence."""
