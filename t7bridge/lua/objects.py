"""Layers as Torch objects, with their weights as views of one storage for each tensor of the state dict.

Names of a PyTorch state dict are in a field of each module with weights, and in one of the root. A module's field is a
table: name of a tensor field → `key` of the state dict, `size` of that tensor, `start` of the part that the field holds
(0-based, in elements), `transposed`. The root's field has the order of the keys, other keys for tied tensors, and the
tensors that no module holds. The fields move with the modules that they describe, so they hold after training,
`getParameters`, cloning and surgery in Lua.
"""

from __future__ import annotations

from attrs import field

from ..data import define
from ..graph.dtypes import ElementType
from ..graph.lua import Table, TorchObject
from ..graph.storage import Storage
from ..graph.tensor import Tensor
from ..lazy import np
from .classes import CONTAINERS, class_of, fields_of
from .gmodule import make_gmodule
from .layers import LuaLayer, WeightRef

FIELD = "t7bridge"
ROOT_FIELD = "t7bridge_state_dict"
GRADIENTS = {"weight": "gradWeight", "bias": "gradBias"}


@define(eq=False)
class ObjectMaker:
    """Creates the objects of layers.

    Attributes:
        element: of all tensors of the model.
        weights: the tensors of the state dict.
        training: whether modules are in training mode.
    """

    element: ElementType
    weights: dict[str, np.ndarray]
    training: bool = False
    _tensors: dict[tuple[WeightRef, bool], Tensor] = field(factory=dict)
    _storages: dict[tuple[str, bool], Storage] = field(factory=dict)
    _made: dict[int, TorchObject] = field(factory=dict)

    def make(self, layer: LuaLayer) -> TorchObject:
        """Return the object of a layer, with everything inside it."""
        if id(layer) in self._made:
            return self._made[id(layer)]
        row = class_of(layer.name) if layer.name != "nn.gModule" else None
        fields = Table.of({"_type": f"torch.{self.element.lua}Tensor"})
        if row is not None:
            fields["output"], fields["gradInput"] = Tensor(self.element, None), Tensor(self.element, None)
        obj = self._made[id(layer)] = TorchObject(layer.name, row.version if row else 1, fields)
        if row is not None:
            for name, value in fields_of(layer, self.element).items():
                obj[name] = value
        if layer.name == "nn.SeqLSTM":
            self._fill_lstm(obj, layer.weights)
        own = {} if layer.name == "nn.SeqLSTM" else layer.weights
        for name, ref in own.items():
            obj[name] = self.tensor(ref)
            if name in GRADIENTS:
                obj[GRADIENTS[name]] = self.tensor(ref, gradient=True)
        if layer.name.endswith("BatchNormalization") and "weight" not in layer.weights:
            obj["affine"] = False
        if not self.training:
            obj["train"] = False
        if layer.weights:
            obj[FIELD] = Table.of(
                {name: weight_entry(ref, self.weights[ref.key].shape) for name, ref in layer.weights.items()}
            )
        if layer.name == "nn.gModule":
            make_gmodule(layer, obj, self.make)
        elif layer.name in CONTAINERS:
            obj["modules"] = Table.from_list([self.make(child) for child in layer.children])
        return obj

    def _fill_lstm(self, obj: TorchObject, refs: dict[str, WeightRef]) -> None:
        """Set weight (in + hidden, gates) and bias of an nn.SeqLSTM: gates i f o g, one bias for PyTorch's two."""

        def gates(name: str) -> np.ndarray:
            i, f, g, o = np.split(self.weights[refs[name].key], 4)
            return np.concatenate([i, f, o, g]).astype(self.element.code)

        weight = np.concatenate([gates("weight_ih_l0").T, gates("weight_hh_l0").T])
        bias = np.zeros(weight.shape[1], self.element.code)
        for name in ("bias_ih_l0", "bias_hh_l0"):
            bias += gates(name) if name in refs else 0
        for name, array in (("weight", weight), ("bias", bias)):
            obj[name] = Tensor.from_numpy(np.ascontiguousarray(array))
            obj[GRADIENTS[name]] = Tensor.from_numpy(np.zeros_like(array, order="C"))

    def tensor(self, ref: WeightRef, gradient: bool = False) -> Tensor:
        """Return the tensor of a field: one object for each part of the state dict, and one storage for each tensor."""
        known = self._tensors.get((ref, gradient))
        if known is not None:
            return known
        whole = self.weights[ref.key]
        if (ref.key, gradient) not in self._storages:
            flat = np.zeros(whole.size, self.element.code) if gradient else whole.reshape(-1).astype(self.element.code)
            self._storages[ref.key, gradient] = Storage.from_array(flat)
        stride, step = [], 1
        for extent in reversed(ref.size):
            stride.append(step)
            step *= extent
        if ref.transposed:  # Lua's rows are the columns of the tensor
            stride[:2] = [ref.size[-2], 1]
        storage = self._storages[ref.key, gradient]
        made = Tensor(self.element, storage, ref.size, tuple(reversed(stride)), ref.start)
        self._tensors[ref, gradient] = made
        return made


def weight_entry(ref: WeightRef, shape: tuple[int, ...]) -> Table:
    """Return the entry of a tensor field."""
    entry = Table.of({"key": ref.key, "size": Table.from_list([float(extent) for extent in shape])})
    if ref.start:
        entry["start"] = float(ref.start)
    if ref.transposed:
        entry["transposed"] = True
    return entry
