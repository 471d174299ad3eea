"""What this machine has, and what fits on it."""
