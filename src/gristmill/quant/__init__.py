"""Execution formats and the published formats that are repacked into them."""
