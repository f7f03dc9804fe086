"""What people touch: the `holdfast` command (`cli`) and the demo (`demo`).

Both use nodes, brokers and the pipeline as any other program would. What only prints or reads
arguments belongs here; what decides or stores does not: it belongs in the part that is asked.
"""
