"""Values of one side as values of the other: Lua's as Python's (`tree`) and back (`lua_tree`, `template`), and the
records of what the other side cannot hold (`records`).
"""

from ..data import face

__getattr__ = face(
    __name__,
    {
        "inputs": "leaves parse_inputs",
        "lua_tree": "LuaTree to_lua",
        "options": "Option REQUIRED option options_of takes verb",
        "records": (
            "decode_pt_record decode_record encode_record pickle_of read_skeleton restore_value structure_hash "
            "take_skeleton write_pt_record"
        ),
        "request": "Convert note_ignored",
        "targets": "differences",
        "template": "MAX_LISTED fill_template state_dict_in",
        "tree": "as_tree",
        "values": "note_foreign",
    },
)
