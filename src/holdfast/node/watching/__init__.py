"""Seeing changes as they come: following the log, and waking who waits for it to grow.

A `source` reads what is new since a place; that of the log is in `changes`. `watches` gives that
to programs, to callers that wait and to coroutines; `verb` makes a verb of it. `log_watch` wakes
the tasks of an event loop, in the daemon too. `watcher_sockets` is how a commit of another process
reaches them.
"""
