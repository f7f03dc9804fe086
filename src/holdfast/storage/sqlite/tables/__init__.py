"""Which tables a transaction of the store knows: those of `others` come when they are needed."""
