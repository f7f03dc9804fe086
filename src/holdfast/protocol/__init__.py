"""The shapes that two processes exchange: frames, batches, JSON documents, lines of an export.

Each shape is declared once, and both ends use that declaration. Nothing here sends, stores or
decides.

    frames                           what node and broker say on a WebSocket
    log_wire, log_json, body_json    log entries, between nodes and for programs
    broker_http, broker_log_http     the documents of a broker's HTTP API
    hello_http, error_body           the documents that every HTTP API has
    mesh_snapshot, export_lines      parts of a snapshot, lines of a file

A document that no code of ours reads stands beside the call that writes it.
"""
