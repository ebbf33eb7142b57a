"""Live PyTorch modules from plans. The only room that imports torch."""
