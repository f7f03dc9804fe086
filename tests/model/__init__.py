"""The contract written a second time, from its words: what a set of envelopes comes to.

It shares no code with the product. It reads homes with the `sqlite3` of the standard library and
envelopes with a reader of its own, so that a mistake in ours has nowhere to hide.
"""
