"""The meaning of Lua's layers: weights to and from state dicts, and plans of modules.

May import graph, errors, limits and report. Knows neither formats nor PyTorch.
"""

from ..data import face
from . import layers as layers

__getattr__ = face(
    __name__,
    {
        "fields": "lookup",
        "graphs": "RESERVED",
        "kinds": "ANY TENSOR Kinds listed many",
        "layouts": "DeviationToVariance apply_layout compact_in compacted reshape undo_layout view",
        "memory": "MemoryEffects",
        "mapping": "Choice GraphNode GraphSpec LAYERS ModuleSpec OURS extent of_runtime short_name specs_in",
        "output_shapes": "Example Examples",
        "places": "Places find_models find_modules is_module is_scratch layer_names module_at",
        "plan": "build_plan graph_arguments",
        "registry": "ParamsOf declared_traits load_classes param tensor_shapes traits_of",
        "blocks": "Block Flow blocks_of",
        "pieces": "recognized undo",
        "state_dict": "StateDict assignment",
        "torch_nn": "REQUIRED Refused TORCH",
    },
)
