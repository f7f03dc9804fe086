"""The pages of the console, one module per subject; `all` lists them in their order.

A module declares its pages and actions (see `apps/web/page`), and has what makes documents of the
API into what its templates show. `health` has the words for how a node is.
"""
