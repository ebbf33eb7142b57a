"""Files of 2010 and 2011, whose nn modules wrote their fields one after another: which these are, the release says. A
file that is such fields alone, those of a network without its class, is headless.

Until November 2011 modules had `write` methods of their own; the values have no names in the file, so that a reader
must know each class. Four states of the sources are distinguished, each named by its first month (`layout.VINTAGES`):

* `2010-11`: Torch5 with xLearn. A tensor has an extra integer before its storage: whether it owns it.
* `2011-06`: the first Torch7 with nn and nnx.
* `2011-09`: `nn.Module` writes a table of all fields; if a class still has a `write`, its values follow the table.
* `2011-10`: only the modules of nnx still do that.

A network was saved with `network:write(file)` and read with `network:read(file)`: such a file starts with the
fields, without the class. It is read as an `nn.Sequential`, and its layout is `headless`.

The table of fields, for reading and writing, has a row for each class, `parent > kind name name …; kind name … if
name`: the parent's values come first, then the class's own. The default parent is nn.Module, also for a class without a
row. A part with `if name` is present only if that field is a table or true.

Kinds: `int`, `long`, `double` and `bool` are written bare; `object` is any value with its tag, `table` a
table, `state` a tensor, a table or nil. In a `size` 0, in a `class` -1 means that
there is no such field. `fields` is a table of all fields of the object.

Sources, read for these facts: xLearn 616b7bd (2010-11-18) and bfbe47b (2011-06-14); torch7-distro 35fd150 (2011-06-15)
to 3743983; lua---nnx 7eca9bc (2011-07-05) to 98fb40a. The full history is in `docs/format-t7-vintage.md`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from attrs import evolve

from ...data import define
from ...errors import CorruptError, FormatError, WriteError
from ...graph.lua import Table, TorchObject, Value
from ...graph.tensor import Tensor
from .layout import TORCH, TORCH5, VINTAGES, Payload, T7Layout

if TYPE_CHECKING:
    from .binary import BinaryInput
    from .text import TextInput

HINT = "The file was written by a Torch of 2010 or 2011, whose nn modules wrote their fields one after another."
_HEADLESS_CLASS = "nn.Sequential"
"""The class of a network that was written without its class."""
_HEADLESS_FIELDS = ("modules", "gradInput", "output")
"""The fields that it has."""
_HEAD_BYTES = 1 << 12
"""Bytes in which a file of that time names a first class."""
_MOST_CLASSES = 1024
"""Layouts of classes that are kept: files may name any number of classes."""
_TAG_BYTES = 32
"""Bytes in which a tag ends: four in binary; in ascii a word, after white space."""


@define(frozen=True)
class _Kind:
    """How one kind of field (int, double, object, …) is encoded in a file of 2010 or 2011.

    Attributes:
        method: end of the names of the reader's and the writer's methods for it: `int` for `read_int`, `write_int`.
        types: the types that its values have in the graph.
        absent: the value written for a missing field, which Lua's `read` method turns into no field; `None` if a
            missing field cannot be written so.
    """

    method: str
    types: tuple[type, ...] = (float, int)
    absent: float | None = None

    @property
    def is_integer(self) -> bool:
        """Whether numbers are truncated when they are written."""
        return self.method in ("int", "long")

    def read(self, reader: Any) -> Value:
        """Read a value."""
        value = getattr(reader, f"read_{self.method}")()
        return float(value) if self.is_integer else value

    def write(self, writer: Any, value: Any) -> None:
        """Write a value."""
        getattr(writer, f"write_{self.method}")(int(value) if self.is_integer else value)

    def holds(self, value: Value) -> bool:
        """Return whether reading returns a value of one of its types as it was written.

        An integer is truncated, `absent` becomes no field, and a truth value written as a number becomes one.
        """
        if isinstance(value, bool):
            return self.method in ("bool", "object")
        return not self.is_integer or (math.isfinite(value) and value == int(value) and value != self.absent)

    def as_read(self, value: Value) -> Value:
        """Return what a number is when it is read after it was written: an integer, or `None` for no field.

        Other values than finite numbers, and those of kinds that are not integers, are returned as they are.
        """
        if not self.is_integer or not isinstance(value, float) or not math.isfinite(value):
            return value
        integer = float(int(value))
        return None if integer == self.absent else integer


_KINDS: dict[str, _Kind] = {
    "object": _Kind("object", (object,)),
    "table": _Kind("object", (Table,)),
    "state": _Kind("object", (Tensor, Table, type(None))),
    "int": _Kind("int"),
    "size": _Kind("int", absent=0.0),
    "class": _Kind("int", absent=-1.0),
    "long": _Kind("long"),
    "double": _Kind("double"),
    "bool": _Kind("bool", (bool,)),
}


@define(frozen=True)
class _Item:
    """One value that an old class writes: a field of its objects.

    Attributes:
        kind: its encoding.
        name: of its field.
        condition: the field that must be a table or true for the value to be there; empty if it always is.
    """

    kind: _Kind
    name: str
    condition: str = ""

    def is_present(self, fields: Table) -> bool:
        """Return whether an object with these fields has the value."""
        if not self.condition:
            return True
        value = fields.get(self.condition)
        return value is True or isinstance(value, Table)


def _items_of_row(text: str) -> list[_Item]:
    """Return the values that a row of the table lists: `kind name name …; kind name … if name`."""
    items = []
    for segment in text.split(";"):
        if not segment.strip():  # a row without values
            continue
        words, _, condition = segment.strip().partition(" if ")
        kind, *names = words.split()
        items += [_Item(_KINDS[kind], name, condition) for name in names]
    return items


@define(frozen=True)
class _ClassLayout:
    """Layout of the objects of one class in a release: the fields, or items, that its `write` method wrote, in later
    releases after a table of all fields.

    Attributes:
        has_table: whether a table of all fields precedes the values.
        items: the values that follow.
    """

    has_table: bool
    items: tuple[_Item, ...]

    def read(self, reader: Any, obj: TorchObject) -> None:
        """Fill an object from the reader: a `read` of `Payload`.

        Args:
            reader: a `T7Reader`, positioned after the class name; its `vintage_objects` counts the object.
            obj: receives the fields.

        Raises:
            CorruptError: the values are not those of the class in this release.
        """
        # The object has a table before its values are read: they may refer to the object.
        fields = obj.fields = Table()
        if self.has_table:
            fields = obj.fields = _read_table(reader, obj.class_name)
        for item in self.items:
            if not item.is_present(fields):
                continue
            value = self._read_item(reader, item, obj.class_name)
            if self.has_table:  # which has the field, too
                self._compare(obj.class_name, item, value, fields.get(item.name))
            elif value is not None:
                fields[item.name] = value
        if self.items:  # an object without such values is written today as then
            reader.vintage_objects += 1

    @staticmethod
    def _read_item(reader: Any, item: _Item, class_name: str) -> Value:
        """Read a value that is a field of an object; `None` if there is no such field: it is nil or `item.kind.absent`.

        Args:
            reader: a `T7Reader`, positioned at the value.
            item: the field.
            class_name: of the object, for the error.

        Raises:
            CorruptError: it is of another type.
        """
        try:
            value = item.kind.read(reader)
        except FormatError as error:
            # An error has a path only in a network without its class: each field was read as a value of the file, from
            # `root` on. Elsewhere the reader of the object around it adds the path.
            if error.path:
                error.path = f"root.{item.name}{error.path[len('root') :]}"
            raise
        if not isinstance(value, item.kind.types):
            raise CorruptError(f"is not a valid {item.name} of a {class_name}", found=type(value).__name__)
        return item.kind.as_read(value)

    @staticmethod
    def _compare(class_name: str, item: _Item, value: Value, table_value: Value) -> None:
        """Check that the table has the same value of a field as follows it; otherwise it is another layout.

        Args:
            class_name: for the error.
            item: the field.
            value: the value after the table; `None` for no field.
            table_value: that of the table; `None` if it does not have the field.

        Raises:
            CorruptError: the values differ.
        """
        table_value_as_read = item.kind.as_read(table_value)
        if not _are_same(value, table_value_as_read):
            raise CorruptError(
                f"the field {item.name} of a {class_name} occurs twice with different values",
                expected=repr(table_value_as_read)[:40],
                found=repr(value)[:40],
                hint=HINT,
            )

    def write(self, writer: Any, obj: TorchObject) -> None:
        """Write an object: the table of all fields, if the release has it, then the values: a `write` of `Payload`.

        Args:
            writer: a `T7Writer`, which has written the class name.
            obj: the object.

        Raises:
            WriteError: the release cannot hold a field, or the object lacks one or has another value for it.
        """
        fields = obj.fields if obj.fields is not None else Table()
        if self.has_table:
            writer.write_object(fields)
        else:
            self._refuse_other_fields(fields, obj.class_name, writer.layout.vintage)
        for item in self.items:
            if item.is_present(fields):
                item.kind.write(writer, self._value_to_write(item, fields, obj.class_name))

    def _refuse_other_fields(self, fields: Table, class_name: str, release: str) -> None:
        """Refuse an object with other fields than a release without a table of all fields writes.

        Args:
            fields: of the object.
            class_name: of the object, for the error.
            release: one of `VINTAGES`, for the error.

        Raises:
            WriteError: there is such a field, which would be lost.
        """
        written_names = {item.name.encode() for item in self.items if item.is_present(fields)}
        for name in fields.raw_keys:
            if name not in written_names and fields[name] is not None:
                raise WriteError(
                    f"a {class_name} of {release} cannot hold the field {name!r}",
                    hint="Write the current layout: T7Layout(vintage='').",
                )

    def _value_to_write(self, item: _Item, fields: Table, class_name: str) -> Value:
        """Return the value of a field as it is written outside of the table.

        Args:
            item: the field.
            fields: of the object.
            class_name: of the object, for the error.

        Raises:
            WriteError: it would not be read as the same value, and no table has that.
        """
        value = fields.get(item.name)
        kind = item.kind
        has_type = isinstance(value, kind.types)
        if has_type and kind.holds(value):
            return value
        # After a table of all fields, from which a reader takes the field, the value may differ as it did in Lua: false
        # is no field there, and a number is truncated by C.
        if kind.absent is not None and (value is None or (self.has_table and value is False)):
            return kind.absent
        if has_type and self.has_table and math.isfinite(value):
            return value
        raise WriteError(f"the field {item.name} of a {class_name} cannot be written", found=repr(value)[:40])


def _read_table(reader: Any, class_name: str) -> Table:
    """Read the table of all fields of an object, whose class is for the error."""
    fields = reader.read_object()
    if not isinstance(fields, Table):
        raise CorruptError(f"the fields of a {class_name} are not a table", found=type(fields).__name__)
    return fields


def _are_same(value: Value, table_value: Value) -> bool:
    """Return whether the two values of a field, `None` for no field, may have been one in Lua."""
    if value is table_value:
        return True
    # Lua writes a missing truth value as false.
    if (value is None or value is False) and (table_value is None or table_value is False):
        return True
    # nan differs from itself, and is printed alike. Objects that are not one and the same differ.
    return isinstance(value, (float, bytes)) and (value == table_value or str(value) == str(table_value))


def _layout_of_class(release: str, name: str) -> _ClassLayout:
    """Return the layout of a class in a release: the values of its parents, from the outermost on, then its own.

    Args:
        release: one of `VINTAGES`.
        name: of the class; one without a row in the release writes what `nn.Module` writes.
    """
    texts = _values_of_classes(release, name)
    has_table = texts[0] == "fields"  # only the outermost class writes one
    items: list[_Item] = []
    for text in texts[1:] if has_table else texts:
        items += _items_of_row(text)
    return _ClassLayout(has_table, tuple(items))


def _values_of_classes(release: str, name: str) -> list[str]:
    """Return the values that a class and its parents write, as `RELEASES` has them: the outermost parent's first.

    A row there is `PARENT > VALUES`, or the values alone for a class below `nn.Module`; what values are, see
    `_items_of_row`. The word `fields` in their place is the table of all fields.

    Args:
        release: one of `VINTAGES`.
        name: of the class.
    """
    rows = RELEASES[release]
    texts: list[str] = []
    while name:
        row = rows.get(name, "")
        if ">" in row:
            parent, _, text = row.rpartition(">")
        else:
            parent = "nn.Module"  # the default, also of a class without a row
            text = row
        texts.insert(0, text.strip())
        name = parent.strip()  # empty for the outermost class
    return texts


@lru_cache(_MOST_CLASSES)
def vintage_payload(release: str, class_name: str) -> Payload | None:
    """Return the layout of a class's objects in a release; `None` if they are a table of fields, as today."""
    if not release or not class_name.startswith("nn."):
        return None
    layout = _layout_of_class(release, class_name)
    if layout.has_table and not layout.items:  # a class without a `write` of its own
        return None
    return Payload(layout.read, layout.write)


# Torch5's tensors


def read_ownership(stream: BinaryInput | TextInput) -> bool:
    """Read the integer before a tensor's storage: whether the tensor owns it."""
    number = stream.read_int("whether a tensor owns its storage")
    if number not in (0, 1):
        raise CorruptError("a tensor's ownership flag is invalid", expected="0 or 1", found=f"{number}", hint=HINT)
    return number == 1


# The whole file


def read_again(reader: Any, start: int, layouts: list[T7Layout], value: Value, failure: FormatError | None) -> Value:
    """Read the first value of a file in the form of 2010 or 2011, if that explains more than today's.

    Args:
        reader: a `T7Reader`, positioned after the bytes read so far.
        start: start of the file.
        layouts: possible encodings of the file.
        value: the value in today's form, returned if no release explains the file better; `None` if there is a failure.
        failure: why it cannot be read in today's form; `None` if it can, but not to the end of the file.

    Returns:
        The value in the old form, behind which the reader is then; or `value`, and the reader is where it was.

    Raises:
        FormatError: no form explains the file; the error is that of the one that explains most.
    """
    furthest_failure = failure
    try:
        for vintage_layout in _vintage_layouts(reader, start, layouts, has_value=failure is None):
            try:
                return reader.try_layout(vintage_layout, lambda: _read_root(reader))
            except FormatError as error:
                furthest_failure = _furthest(furthest_failure, error, reader.vintage_objects)
        if furthest_failure:
            raise furthest_failure
        return value
    finally:
        furthest_failure = failure = None  # errors refer to this frame: break the reference cycle


def _furthest(earlier: FormatError | None, error: FormatError, vintage_objects: int) -> FormatError | None:
    """Return the failure that explains more of a file: the one further on, of equal ones the earlier.

    Args:
        earlier: the furthest so far; `None` if there is none.
        error: the failure of another attempt, in a form of 2010 or 2011.
        vintage_objects: objects in this form that were complete before it.
    """
    # Two are not a coincidence: the file is of that time, and damaged. With fewer, the attempt does not count.
    if vintage_objects < 2:
        return earlier
    if earlier is not None and (error.offset or 0) <= (earlier.offset or 0):
        return earlier
    error.hint = HINT
    return error


def _vintage_layouts(reader: Any, start: int, layouts: list[T7Layout], has_value: bool) -> list[T7Layout]:
    """Return the layouts of 2010 and 2011 that a file may have, in the order in which they are tried.

    Args:
        reader: as of `read_again`.
        start: start of the file.
        layouts: possible encodings of the file.
        has_value: whether a first value was read in today's form.
    """
    # The reader has the objects of the value, or those read before the failure: if several layouts failed, perhaps of
    # a wrong one, so that they tell nothing.
    objects = list(reader.objects) if has_value or len(layouts) == 1 else None
    releases = _possible_releases(reader, start, objects)
    combinations = product(releases, layouts, _possible_headless(objects))
    return [evolve(layout, vintage=release, headless=is_headless) for release, layout, is_headless in combinations]


def _possible_releases(reader: Any, start: int, objects: list[Value] | None) -> tuple[str, ...]:
    """Return the releases that may have written a file of which today's layout explains nothing, or only the start.

    Args:
        reader: a `T7Reader`, positioned after the bytes read so far.
        start: start of the file.
        objects: the objects of the value in today's form, as far as it was read; `None` if they are not known.
    """
    _today, _torch5, *torch7_releases = VINTAGES
    head = reader.source.read(start, _HEAD_BYTES)
    if b"torch.Tensor" in head:  # the class of tensors that only Torch5 had
        return (TORCH5,)
    if objects is None:
        return tuple(torch7_releases) if b"nn." in head else ()
    if objects and isinstance(objects[0], Tensor):
        # A network without its class begins with two tensors, if the first release of Torch7 wrote it; those of later
        # releases begin with a table. For today's layout the first tensor is all of the value.
        return tuple(torch7_releases[:1]) if _starts_torch_object(reader) else ()
    # Any other value: the releases in which a class in it has values after its table, or instead of one.
    names = {item.class_name for item in objects if isinstance(item, TorchObject)}
    return tuple(release for release in torch7_releases if any(vintage_payload(release, name) for name in names))


def _starts_torch_object(reader: Any) -> bool:
    """Return whether the tag of a Torch object, as a tensor is one, is where a `T7Reader` is positioned."""
    next_bytes: bytes = reader.source.read(reader.position, _TAG_BYTES)
    if reader.layout.encoding == "ascii":
        return next_bytes.split(maxsplit=1)[:1] == [b"%d" % TORCH]
    return TORCH in next_bytes[:4]  # the byte of the tag, in either byte order


def _possible_headless(objects: list[Value] | None) -> tuple[bool, ...]:
    """Return whether a file may start with the fields of a network without its class.

    Args:
        objects: those of the value in today's form (tables, tensors, objects of classes), as far as it was read;
            `None` if they are not known.

    Returns:
        The possible answers: one, or both in the order in which they are tried.
    """
    first_object = objects[0] if objects else None
    # Nothing is known, or a table is first: that of the network's fields, or any value with objects of that time in it.
    # The fields are tried first, as `_read_headless` takes nothing else for them.
    if first_object is None or isinstance(first_object, Table):
        return (True, False)
    if isinstance(first_object, TorchObject):  # which has its class
        return (False,)
    return (True,)  # a tensor, with which the fields of a network begin, too


def _read_root(reader: Any) -> Value:
    """Read the one value of a file, whose layout is that of the reader.

    Raises:
        CorruptError: more follows, or nothing in it is of that time.
    """
    value = _read_headless(reader) if reader.layout.headless else reader.read_object()
    if not reader.at_end or not reader.vintage_objects:  # both say that another release, or today's, wrote the file
        raise CorruptError("more follows than one value of that time", hint=HINT)
    return value


def _read_headless(reader: Any) -> Value:
    """Read a network without its class: the fields that it has in the release, one after another.

    Args:
        reader: a `T7Reader` at the start of the file, under a layout of that time.

    Raises:
        CorruptError: they are not those of a network.
    """
    network = TorchObject(_HEADLESS_CLASS)
    _layout_of_class(reader.layout.vintage, _HEADLESS_CLASS).read(reader, network)
    modules = network.get("modules")
    children = modules.raw_values if isinstance(modules, Table) else []
    # Bytes of another kind could be read as fields by accident: only a network with layers, and all its fields, is one.
    if not children:
        raise CorruptError("is not a network without its class", hint=HINT)
    for child in children:
        if not isinstance(child, TorchObject) or not child.class_name.startswith("nn."):
            raise CorruptError("is not a network without its class", hint=HINT)
    if not all(name in network for name in _HEADLESS_FIELDS):  # one is nil, or not in the table of all fields
        raise CorruptError("a network without its class lacks a field", expected=", ".join(_HEADLESS_FIELDS), hint=HINT)
    return network


def can_be_headless(value: Value) -> bool:
    """Return whether a value may be written without its class."""
    return isinstance(value, TorchObject) and value.class_name == _HEADLESS_CLASS


def write_headless(writer: Any, value: TorchObject) -> None:
    """Write what Lua's `network:write(file)` wrote: the fields of a network without its class."""
    _layout_of_class(writer.layout.vintage, _HEADLESS_CLASS).write(writer, value)


# Parts of rows that several classes share.
_PARAMETERS = "object weight bias gradWeight gradBias"
_WEIGHT = "object weight gradWeight"
_PLANES = "int kW kH dW dH nInputPlane nOutputPlane"
_MAPPED = f"{_PLANES}; {_PARAMETERS} connTable"
_SPATIAL_LINEAR = f"int fanin fanout; double weightDecay; {_PARAMETERS}"
_FRAMES = f"int kW dW inputFrameSize outputFrameSize; {_PARAMETERS}"
_HESSIAN = (
    "object hessianWeight hessianBias hessianInput squaredWeight squaredInput weightLearningRate biasLearningRate"
)
_FOVEA = "object ratios downsamplers padders upsamplers processors preProcessors pyramid preProcessed padded narrowed"
_NORM_MODULES = "object convo convostd squareMod sqrtMod {} meanDiviseMod stdDiviseMod thresMod diviseMod coef"
_NORMALIZATION = "object kernel; int nfeatures padW padH kerWisPair kerHisPair; " + _NORM_MODULES
_PAIRS = "int pad2W pad2H ker2WisPair ker2HisPair if kernel"
_CONTRAST = "object meanmod varmod squaremod sqrtmod difmod divmod thresmod inmean inzmean inzmeansq invar instd thstd"

_NN = {  # torch7-distro until 22c7852, 2011-09-01
    "nn.Module": "> state gradInput output",
    "nn.Add": "object bias gradBias",
    "nn.CMul": _WEIGHT,
    "nn.Concat": "table modules; object size; int dimension",
    "nn.ConcatTable": "table modules",
    "nn.CriterionTable": "object criterion",
    "nn.Euclidean": _WEIGHT,
    "nn.JoinTable": "object size; int dimension",
    "nn.Linear": f"double weightDecay; {_PARAMETERS}",
    "nn.LogSigmoid": "object buffer",
    "nn.LookupTable": "object size weight currentInputs currentGradWeights",
    "nn.MarginCriterion": "double margin",
    "nn.Max": "int dimension; object indices",
    "nn.Mean": "int dimension",
    "nn.Min": "int dimension; object indices",
    "nn.Mul": _WEIGHT,
    "nn.PairwiseDistance": "double norm",
    "nn.Parallel": "table modules; object size; int inputDimension outputDimension",
    "nn.ParallelTable": "table modules",
    "nn.Reshape": "object size",
    "nn.Select": "int dimension; long index",
    "nn.Sequential": "table modules",
    "nn.SparseLinear": f"double weightDecay; {_PARAMETERS} lastInput",
    "nn.SpatialConvolution": f"{_PLANES}; {_PARAMETERS}",
    "nn.SpatialSubSampling": f"int kW kH dW dH nInputPlane; {_PARAMETERS}",
    "nn.SplitTable": "object modules; int dimension",
    "nn.Sum": "int dimension",
    "nn.TemporalConvolution": _FRAMES,
    "nn.TemporalSubSampling": f"int kW dW inputFrameSize; {_PARAMETERS}",
    "nn.VolumetricConvolution": f"int kT kW kH dT dW dH nInputPlane nOutputPlane; {_PARAMETERS}",
}
_NN_LATE = {  # torch7-distro until 3743983, 2011-09-18
    "nn.Criterion": "> object gradInput; double output",
    "nn.AbsCriterion": "nn.Criterion > bool sizeAverage",
    "nn.ClassNLLCriterion": "nn.Criterion >",
    "nn.CosineEmbeddingCriterion": "double margin",
    "nn.HingeEmbeddingCriterion": "double margin",
    "nn.L1HingeEmbeddingCriterion": "double margin",
    "nn.MarginRankingCriterion": "double margin",
    "nn.MSECriterion": "nn.Criterion > bool sizeAverage",
    "nn.MultiCriterion": "nn.Criterion > object criterions weights",
    "nn.Narrow": "int dimension; long index length",
    "nn.Power": "double pow",
    "nn.Replicate": "int nfeatures",
    "nn.SpatialConvolutionMap": _MAPPED,
    "nn.SpatialMaxPooling": "int kW kH dW dH; object indices",
    "nn.StochasticGradient": "> double learningRate learningRateDecay; int maxIteration; bool shuffleIndices; "
    "object module criterion",
    "nn.Threshold": "double threshold val",
}
_NNX = {  # lua---nnx until 98fb40a, 2011-11-11
    "nn.DistNLLCriterion": "nn.Criterion > bool inputIsProbability inputIsLogProbability targetIsProbability; "
    "object targetSoftMax inputLogSoftMax gradLogInput",
    "nn.Probe": "object name; bool content display size backw",
    "nn.SparseCriterion": "nn.Criterion > bool sizeAverage",
    "nn.SpatialClassNLLCriterion": "nn.ClassNLLCriterion > double resampleTarget; int nbGradients; bool sizeAverage",
    "nn.SpatialColorTransform": "object transform; bool islinear; object linear if islinear",
    "nn.SpatialConvolutionSparse": _MAPPED,
    "nn.SpatialFovea": f"int nInputPlane padding fov sub; bool bilinear; {_FOVEA} processed upsampled",
    "nn.SpatialGraph": "int connex dist normalize",
    "nn.SpatialLinear": _SPATIAL_LINEAR,
    "nn.SpatialMSECriterion": "nn.MSECriterion > double resampleTarget; int nbGradients; class ignoreClass",
    "nn.SpatialNormalization": f"{_NORMALIZATION.format('subtractMod')}; {_PAIRS}; size fixedThres",
    "nn.SpatialPadding": "int pad_l pad_r pad_t pad_b",
    "nn.SpatialReSampling": "int owidth oheight",
    "nn.SpatialRecursiveFovea": "int nInputPlane nRecursivePlane fov sub; object ratios downsamplers padders "
    "upsamplers upsampledPadders processors preProcessors postProcessors criterions pyramid preProcessed padded "
    "narrowed concatenated processed upsampled upsampledPadded upsampledNarrowed postProcessed predicted",
    "nn.SpatialSparseCriterion": "nn.SparseCriterion > double resampleTarget; int nbGradients",
    "nn.SpatialUpSampling": "int dW dH",
}
_XLEARN = {  # Torch5 and xLearn, where they differ from the above or have more
    "nn.AbsModuleHessian": "object hessianInput",
    "nn.ContrastNormalization": f"object kernel; int nfeatures; {_CONTRAST}",
    "nn.Fovea": "int patchsize channels nbscales",
    "nn.GaborLayer": "object bank",
    "nn.ImageTransform": "object linear",
    "nn.LocalGraph": "int connex dist normalize",
    "nn.LocalNorm": f"{_NORMALIZATION.format('substractMod')}; {_PAIRS}",
    "nn.Mult": "double val",
    "nn.SoftMax": "double shift; bool computeShift",
    "nn.SparseLinear": f"double weightDecay; {_PARAMETERS}",
    "nn.SpatialConvolutionTable": _MAPPED,
    "nn.SpatialConvolutionTableHessian": f"nn.SpatialConvolutionTable > {_HESSIAN}",
    "nn.SpatialFovea": f"int nInputPlane padding fov sub; {_FOVEA} processed upsampled",
    "nn.SpatialLinearHessian": f"nn.SpatialLinear > {_HESSIAN}",
    "nn.SpatialMSECriterion": "nn.Criterion > double resampleTarget; int nbUpdates; bool distribution; "
    "int ignoreClass; bool meanError",
    "nn.SpatialNLLCriterion": "nn.Criterion > double resampleTarget; int nbUpdates",
    "nn.SpatialSubSamplingHessian": f"nn.SpatialSubSampling > {_HESSIAN}",
    "nn.SpatialUpSampling": "int dW dH nInputPlane",
    "nn.TanhHessian": "object hessianInput",
}
_FIELDS = "> fields"
RELEASES: dict[str, dict[str, str]] = {
    "2010-11": {**_NN, **_NN_LATE, **_NNX, **_XLEARN},
    "2011-06": {**_NN, **_NN_LATE, **_NNX, "nn.SpatialConvolutionTable": _MAPPED},
    "2011-09": {**_NN_LATE, **_NNX, "nn.Module": _FIELDS},
    "2011-10": {**_NNX, "nn.Module": _FIELDS, "nn.Criterion": _FIELDS},
}
