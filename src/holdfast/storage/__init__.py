"""Where envelopes and state rest.

All SQL of the project lives here, and everything that must survive a crash: files are renamed into
place only by `durable`. What a change means is decided by `rules`; this package makes it last.
"""
