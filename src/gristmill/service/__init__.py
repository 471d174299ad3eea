"""Admission, streams and settlement of a request."""
