"""The native plan executor."""
