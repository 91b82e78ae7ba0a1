"""Checkpoints that kvproof makes itself. Each file is run by the locked environment's interpreter."""
