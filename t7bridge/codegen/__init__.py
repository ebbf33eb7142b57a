"""Lua models as Python source that needs only PyTorch: plans become classes, and layers PyTorch lacks come along."""
