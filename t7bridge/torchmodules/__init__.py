"""Live PyTorch modules from plans. The only package that imports torch for modules."""
