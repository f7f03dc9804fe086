"""How bytes travel between processes: Unix sockets, TCP, TLS, HTTP and WebSockets.

Both sides are here. A client (`http_client`, `websocket_client`, on `deadline_socket`) gets through
or raises in bounded time and with bounded memory, whatever the other side does. A server
(`listeners`, `doorkeeper`, `http_server`, `websocket_server`) does the same for whatever strangers
send.
`http_stream` is a client for programs on an event loop; `etcd_gateway` calls an etcd over it.
`handshake` and `peer_client` prove keys and keep a session with another node; `remote_errors` turns
an answer with an error into the error itself.

What calls mean is not decided here: the room asks `protocol` for shapes and `rules` for errors,
limits and keys, and knows neither node nor broker nor storage.
"""
