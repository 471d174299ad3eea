"""Sequences, the scheduler, batches, the loop and the handle."""
