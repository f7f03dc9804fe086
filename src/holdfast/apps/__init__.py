"""What people touch. Everything here uses a node the way any other program would."""
