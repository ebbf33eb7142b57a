"""From Lua objects to a plan of PyTorch modules: ModuleSpec and its keys."""
