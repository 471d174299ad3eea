"""What fits on this machine."""
