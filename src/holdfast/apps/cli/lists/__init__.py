"""Lists as people and programs want them: which rows and fields (`listing`), how wide the columns
of a table are (`columns`), and a screen at a time (`pager`).

`watching` shows what comes, a line each, for the verbs `watch` and `log tail -f`.
"""
