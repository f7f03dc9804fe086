"""Parts of pages that are sent anew when something has changed.

`changes` counts what happens in a node or a broker, by kind; nothing is polled. A `channel` makes
the parts of one page with the rights of one caller, once for all who look at it, and only if
something happened by which they may have changed. `stream` sends a browser those that are other
than before. `open_pages` says how many pages a token may keep open.
"""
