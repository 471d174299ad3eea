"""What runs a graph; `base` is the contract."""
