"""State dicts of Lua models: layouts, filling, compaction, and the audit of fields left out."""
