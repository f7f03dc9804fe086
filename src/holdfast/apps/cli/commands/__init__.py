"""One module for each command, of the same name.

Three commands live beside their opposite: `down` in `up`, `restore` in `backup`, `import` in
`export`. The verbs of `mesh` and `pipeline` are many, so these two modules only collect them from
`mesh_…` and `pipeline_…`. A module declares its command as a name with an underscore (`state_`), by
which `holdfast.apps.cli.app` finds it. Options and functions of one command that another one needs
are imported from its module.
"""
