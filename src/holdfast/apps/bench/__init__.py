"""`holdfast bench`: what this disk, this home's software and a broker make here, beside the README.

`figures` has the figures of the README, each once: a test looks that the page says the same.
`disk` and `writes` measure in a throw-away home beside the real one, `messages` in a throw-away
mesh at a broker; `run` divides the time among them. Whatever is made is removed, also on Ctrl-C.
"""
