"""Opening and closing a home, and having it alone.

`opening` takes a folder to an open `NodeEngine` and back: it checks modes and unclean ends, opens
the store, and notices a database that has gone back in time. `exclusive` is for work that no other
process may see half done: restore, repair, rollback.

Which files a home has, and which processes have it open, is in `storage.files.home`. The room does
not know what the node does with the home.
"""
