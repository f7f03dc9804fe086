"""Backup, restore, doctor, repair."""
