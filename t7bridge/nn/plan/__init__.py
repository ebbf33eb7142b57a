"""From Lua objects to the plan of the modules they mean: ModuleSpec and its keys."""
