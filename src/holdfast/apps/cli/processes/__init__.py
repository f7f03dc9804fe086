"""Programs that a command begins as processes of their own, and that nobody begins by hand."""
