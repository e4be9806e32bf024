"""Reference models in PyTorch, and their tokenizers and chat formats."""
