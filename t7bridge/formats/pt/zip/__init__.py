"""PyTorch's zip archives: a strict reader, and a writer."""
