"""One module per noun of the command line; each is imported when its command is asked for."""
