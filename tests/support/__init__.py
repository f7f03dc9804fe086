"""What several tests share. Import it as `from support.seeds import seeds`."""
