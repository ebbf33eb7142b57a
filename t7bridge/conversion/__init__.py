"""Values of one side as values of the other: Lua's as Python's (`tree`) and back (`lua_tree`, `template`), and the
records for what the other side cannot hold (`t7_record`, `pt_record`).
"""
