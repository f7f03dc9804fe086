"""Spark itself: a session with our settings, a Java to run it on, and its errors as ours.

`session.py` starts Spark, `java.py` finds a Java for it, `failures.py` turns an error of Spark into
one sentence, `ending.py` ends a job when a signal comes, `hadoop.py` asks which places
Java can read. Nothing here knows of logs or of the lake.
"""
