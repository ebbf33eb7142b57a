"""Values of one side as values of the other: Lua's as Python's (`tree`) and back (`lua_tree`, `template`), and the
records of what the other side cannot hold (`records`).
"""
