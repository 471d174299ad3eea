"""Ops, builder, passes and cost: one description of a model."""
