"""Which random numbers choose which token: Philox, keyed by seed, choice and position."""
