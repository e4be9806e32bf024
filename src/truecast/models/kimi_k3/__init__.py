"""Kimi-K3: the reference model, its tokenizer and its chat format."""
