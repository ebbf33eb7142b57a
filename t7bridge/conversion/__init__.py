"""The values of one side as those of the other: Lua's as Python's (`tree`) and back (`lua_tree`, `template`), and what
travels beside them because the other side cannot hold it (`record`, `pt_record`).
"""
