"""Bronze into silver, by the rules of nodes."""
