"""Describe a value as PyTorch sees it, in the JSON whose format stands at the top of `pt_cases.py`."""
import collections, zlib
import torch
from torch import nn


def describe(root):
    ids = {}

    def tensor(t):
        raw = t.untyped_storage()
        key = raw.data_ptr() if raw.nbytes() else id(raw)
        number = ids.setdefault(key, len(ids) + 1)
        return {"t": "tensor", "dtype": str(t.dtype).removeprefix("torch."), "size": list(t.shape), "stride": list(t.stride()),
                "offset": t.storage_offset(), "storage": number, "nbytes": raw.nbytes(), "crc32": zlib.crc32(bytes(raw.tolist())),
                "requires_grad": t.requires_grad, "parameter": isinstance(t, nn.Parameter)}

    def node(v):
        if v is None: return {"t": "none"}
        if isinstance(v, torch.Tensor): return tensor(v)
        if isinstance(v, bool): return {"t": "bool", "v": v}
        if isinstance(v, int): return {"t": "int", "v": str(v)}
        if isinstance(v, float): return {"t": "float", "v": repr(v)}
        if isinstance(v, str): return {"t": "str", "v": v}
        if isinstance(v, bytes): return {"t": "bytes", "hex": v.hex()}
        if isinstance(v, torch.Size): return {"t": "tuple", "v": [node(e) for e in v]}
        if isinstance(v, collections.OrderedDict): return {"t": "odict", "v": [[node(k), node(e)] for k, e in v.items()]}
        if isinstance(v, dict): return {"t": "dict", "v": [[node(k), node(e)] for k, e in v.items()]}
        if isinstance(v, (list, tuple)): return {"t": type(v).__name__, "v": [node(e) for e in v]}
        return {"t": "other", "v": f"{type(v).__module__}.{type(v).__qualname__}"}
    return node(root)
