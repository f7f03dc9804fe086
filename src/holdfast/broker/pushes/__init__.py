"""What members push, from the frame to columns, and from answers back to a frame.

`push_frame` reads the outline of a frame and writes the answers; `decode_push` reads the envelopes
in it, with the compiled reader where there is one (`rules/compiled.py`), and says what is wrong
with those that are refused. What comes out are the columns of `rules/push_columns.py`.
"""
