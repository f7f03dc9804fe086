"""The library against a daemon: what `holdfast.connect` gives.

Each class here is one of the library's with the same verbs, which ask a daemon instead of a home.
Most of them follow from the declarations in `node/calls` (`faces`); `content`, `messages`,
`strong` and `log` are for what travels in another form, `watching` for what comes as it happens.
`line` keeps the connections, `node` puts all together, `aio` makes the same for coroutines,
`opening` finds the daemon.

Code that was written for `holdfast.Node` and `holdfast.Mesh` takes these too.
"""
