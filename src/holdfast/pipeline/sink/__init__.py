"""Format("holdfast"), writing back."""
