"""Renders recorded JSON for people: the model card. Computes nothing, reads no checkpoint."""
