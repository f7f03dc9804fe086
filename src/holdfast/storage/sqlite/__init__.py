"""A home's database: schema, writer, families, log and spool on SQLite through apsw.

One thread writes, any number read. apsw is the only SQLite library in the process, because a second
one would drop the first one's locks.
"""
