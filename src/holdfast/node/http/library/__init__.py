"""The library over HTTP: `verbs` serves every verb that is declared in `node/calls`, `files` the
content of files, which is no JSON, `arrivals` messages as they come, `reembed` the moving of
vectors. `server_events` is how streams of events are written.
"""
