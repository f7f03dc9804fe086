"""The `holdfast` command: tables for people, `--json` for programs.

`main` is the entry point. It tries `quick` first, which answers `state get` and `memory get` with
few imports; every other call goes to `app`, which finds the module of the command in `commands` and
turns errors into exit codes. A command is declared with `declare` and gets a `CommandSession`
(`session`): through it the command opens the node and prints its answer. `documents` makes the JSON
of rows, `tables` prints it for people, `output` is stdout and stderr. `inputs`, `times` and
`contents` read what people write; `progress` shows how far long work is. `serving` and `detached`
run daemons, `own_daemon` asks the daemon of the home.

What every command shares belongs here; what one command does belongs in `commands`.
"""
