"""Ops, builder, recorder and liveness: one description of a model."""
