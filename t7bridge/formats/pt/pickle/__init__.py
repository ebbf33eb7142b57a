"""Pickles as PyTorch writes them, interpreted and never executed, and their writer."""
