"""Valid names in PyTorch for a module inside another."""

from __future__ import annotations

import keyword

_WORDS = """
T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double
dump_patches eval extra_repr float forward half ipu load_state_dict modules mtia parameters
register_buffer register_module register_parameter requires_grad_ share_memory state_dict to
to_empty train training type xpu zero_grad append extend insert pop nodes outputs returns_list
get_buffer get_parameter get_submodule set_submodule get_extra_state set_extra_state named_buffers
named_children named_modules named_parameters
"""
RESERVED = frozenset(_WORDS.split())
"""Attributes of every torch.nn.Module that a user might choose as the name of a layer."""


def is_free_name(name: str) -> bool:
    """Return whether a module can be an attribute of this name."""
    return name.isidentifier() and not (name.startswith("_") or keyword.iskeyword(name) or name in RESERVED)
