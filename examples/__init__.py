"""Checkpoints to try truecast on, made by code: a real small model, and the shapes of the very large ones."""
