"""The zip archives of PyTorch: a reader that checks everything, and a writer."""
