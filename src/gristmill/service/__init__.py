"""Admission, generations and their streams."""
