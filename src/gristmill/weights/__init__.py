"""Model references, checkpoints and loading into execution formats."""
