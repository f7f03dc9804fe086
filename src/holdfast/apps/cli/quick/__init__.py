"""Commands that stand in loops and prompts, by a way that costs little: `reads`, `writes`."""
