"""What a shell offers while a command is being typed.

The shell asks at every Tab, so an answer must cost little more than starting Python: the commands
and their options are read from `words.json`, which `make docs` writes from the commands themselves,
and names from the database by the reads of the quick path (`storage/sqlite/quick_read`).
"""
