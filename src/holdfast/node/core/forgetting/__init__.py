"""What a node keeps in mind of what it has forgotten, so that nobody takes it for all there was."""
