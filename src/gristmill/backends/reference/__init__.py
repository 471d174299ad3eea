"""The definition of every op, in numpy."""
