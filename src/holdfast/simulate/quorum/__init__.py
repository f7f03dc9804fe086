"""Voters that decide among themselves, while everything between and under them fails.

quorum      the world: machines, clients, what must hold, and the story of a seed
machine     one computer: a disk that fails, the real Raft log on it, and the real driver
voter_disk  that log, on a disk that takes its time
registers   what the entries of this world mean: registers that are set and compared
register_fold  how a machine folds them, and snapshots of them
operator    who lets members come and go
books       what clients asked and heard, and what every machine applied
storm       what goes wrong, drawn from the seed
"""
