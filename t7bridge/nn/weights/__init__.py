"""State dicts of Lua models: layouts, filling, compaction, and the audit of what was left out."""
