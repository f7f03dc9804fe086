"""Time, chance, machines, network, workload, invariants."""
