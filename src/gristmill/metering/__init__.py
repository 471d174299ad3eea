"""Nanoseconds, blocks and tokens, attributed to requests; no money."""
