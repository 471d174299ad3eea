"""The block pool and the prefix index."""
