"""A server for one lake: it keeps Spark warm, follows the logs, and answers on a Unix socket.

`daemon.py` starts and ends it, `rounds.py` takes in what is new, `warm.py` keeps the session alive,
`calls.py` has what it answers, `client.py` asks it. `place.py` says where its socket is. Only the
user who runs it can open the socket.
"""
