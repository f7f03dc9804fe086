"""Does every node hold what its log makes."""
