"""Types, errors, settings, clock and units; imports nothing of ours."""
