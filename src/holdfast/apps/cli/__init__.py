"""The `holdfast` command: tables for people, `--json` for programs."""
