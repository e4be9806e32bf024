"""Checkpoints shaped exactly like very large released ones, at any scale, with made-up contents."""
