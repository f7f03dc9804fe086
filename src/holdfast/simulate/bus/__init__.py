"""Peers on a simulated network: the bus as it runs, on clocks, disks and links from a seed."""
