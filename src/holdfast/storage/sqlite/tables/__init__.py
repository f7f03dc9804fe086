"""Which tables a transaction of the store knows: those of `others` come when they are needed, and
so does the way of facts in columns into the log (`log_facts`).
"""
