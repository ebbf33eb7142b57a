"""Lua models as Python source that needs only PyTorch: plans become classes; layers that PyTorch lacks are included."""
