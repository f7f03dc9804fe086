"""Who is at the console: one-time codes, sessions, and the pages by which one comes and goes.

`holdfast console` asks the daemon for a code over the Unix socket, which only this node's own user
can open, and puts it behind the `#` of an address, where no server and no log sees it. A script
posts it once; the answer sets a cookie. A token does the same, with the rights of the token.
"""
