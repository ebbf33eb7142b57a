"""Files of 2010 and 2011, whose nn modules wrote their fields one after another.

The files are made by hand after the `write` methods of that time (see `t7bridge/formats/t7/releases_2010.py`).
"""

from __future__ import annotations

import pytest
from attrs import evolve
from helpers import ASCII, LAYOUTS, Parts, check_read_write, description, lines, read, written

from t7bridge import Storage, T7Layout, T7Reader, Table, Tensor, TorchObject
from t7bridge.errors import CorruptError, TruncatedError, WriteError
from t7bridge.formats import HINT, RELEASES, VINTAGES, vintage_payload
from t7bridge.graph import FLOAT64

FIELDS, LATE, NNX = VINTAGES[2:]
TORCH5 = VINTAGES[1]


class Net(Parts):
    """Builds the values of a file; objects are numbered as they come."""

    def __init__(self, layout: T7Layout, *, torch5: bool = False) -> None:
        super().__init__(layout)
        self.torch5 = torch5
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count

    def object(self, class_name: str) -> Net:
        self.torch(self.next(), class_name)
        return self

    def tensor(self, *values: float, owned: int = 1) -> Net:
        """Return a tensor of one dimension, or of none without values."""
        self.object("torch.Tensor" if self.torch5 else "torch.DoubleTensor")
        self.ints(1 if values else 0)
        if values:
            self.longs(len(values)).longs(1)
        self.longs(1)
        if self.torch5:
            self.ints(owned)
        if not values and not self.torch5:
            return self.nil()
        self.object("torch.DoubleStorage").longs(len(values))
        self.elements("d", *values)
        return self

    def nil(self) -> Net:
        self.ints(0)
        return self

    def table(self, count: int) -> Net:
        self.ints(3, self.next(), count)
        return self

    def key(self, name: str) -> Net:
        self.string(name)
        return self

    def state(self) -> Net:
        """An empty `gradInput` and `output`."""
        return self.tensor().tensor()


def two_layers(layout: T7Layout, *, torch5: bool = False) -> Net:
    """A network without its class, as `network:write(file)` wrote it before September 2011."""
    net = Net(layout, torch5=torch5)
    net.state().table(2)
    net.number(1)
    net.object("nn.Threshold").state().double(0.25).double(-1)
    net.number(2)
    net.object("nn.Linear").state().double(0)
    return net.tensor(1, 2).tensor(3).tensor().tensor()


@pytest.mark.parametrize("torch5", [False, True], ids=["torch7", "torch5"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_headless(layout, torch5):
    """The root becomes the nn.Sequential that it is, and every value a field; the bytes come back."""
    data = two_layers(LAYOUTS[layout], torch5=torch5).data
    root = check_read_write(data)
    assert root.class_name == "nn.Sequential"
    assert [bytes(key) for key in root.fields.raw_keys] == [b"gradInput", b"output", b"modules"]
    threshold, linear = root["modules"].raw_values
    assert (threshold.class_name, threshold["threshold"], threshold["val"]) == ("nn.Threshold", 0.25, -1.0)
    assert linear["weight"].numpy().tolist() == [1.0, 2.0]
    assert linear["bias"].numpy().tolist() == [3.0]
    reader = T7Reader(data)
    reader.read_object()
    assert (reader.layout.vintage, reader.layout.headless) == (TORCH5 if torch5 else FIELDS, True)


def test_with_class():
    """`file:writeObject(network)` wrote the class too."""
    net = Net(ASCII).object("nn.Sequential").state().table(1)
    net.number(1)
    net.object("nn.Tanh").state()
    root = check_read_write(net.data)
    assert root["modules"][1].class_name == "nn.Tanh"
    reader = T7Reader(net.data)
    reader.read_object()
    assert (reader.layout.vintage, reader.layout.headless) == (FIELDS, False)


def test_ascii_by_hand():
    """The same in plain sight; numbers were printed with 6 digits."""
    data = lines("""
        4 # root.gradInput
        1
        3
        V 1
        18
        torch.DoubleTensor
        0 # dimensions
        1 # offset
        0 # no storage
        4 # root.output: the same tensor
        1
        3 # root.modules
        2
        1
        1 # [1]
        1
        4
        3
        3
        V 1
        12
        nn.Threshold
        4 # gradInput
        1
        4 # output
        1
        1e-06 # threshold
        0 # val
    """)
    root = check_read_write(data)
    assert root["modules"][1]["threshold"] == 1e-06
    assert root["modules"][1]["output"] is root["gradInput"] is root["output"]


def normalization(net: Net, kernels: int) -> None:
    """An nn.SpatialNormalization with one kernel, or with a pair of them."""
    net.object("nn.SpatialNormalization").state()
    if kernels == 2:
        net.table(2)
        for number in (1, 2):
            net.number(number)
            net.tensor(number)
    else:
        net.tensor(1)
    net.ints(1, 3, 3, 0, 0)
    for _ in range(10):
        net.nil()
    if kernels == 2:
        net.ints(5, 6, 7, 8)
    net.ints(0)


@pytest.mark.parametrize("kernels", [1, 2])
def test_values_that_depend_on_others(kernels):
    """With a pair of kernels four more integers were written; a threshold of 0 means none, and nil has no field."""
    net = Net(ASCII).state().table(1)
    net.number(1)
    normalization(net, kernels)
    layer = check_read_write(net.data)["modules"][1]
    assert layer["padW"] == 3.0
    assert "fixedThres" not in layer
    assert "convo" not in layer
    assert layer.get("ker2HisPair") == (8.0 if kernels == 2 else None)


def late_threshold(net: Net, val: float = -1, *, own_values: bool = True) -> None:
    """Autumn 2011: the table of all fields, followed by the output of the class's own `write`."""
    net.object("nn.Threshold").table(2).key("threshold").number(0.5)
    net.key("val").number(-1)
    if own_values:
        net.double(0.5).double(val)


def late_padding(net: Net) -> None:
    """The same of a class of nnx."""
    net.object("nn.SpatialPadding").table(4)
    for side, name in enumerate(("pad_l", "pad_r", "pad_t", "pad_b")):
        net.key(name).number(side)
    net.ints(0, 1, 2, 3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_table_and_values(layout):
    """A headless table is the nn.Sequential; classes without a `write` of their own are as today."""
    net = Net(LAYOUTS[layout]).table(3).key("gradInput").tensor().key("modules").table(3)
    net.number(1)
    late_threshold(net)
    net.number(2)
    net.object("nn.Tanh").table(1).key("output").tensor(7)
    net.number(3)
    late_padding(net)
    net.key("output").tensor()
    root = check_read_write(net.data)
    assert root.class_name == "nn.Sequential"
    assert root["modules"][1]["val"] == -1.0
    assert root["modules"][3]["pad_b"] == 3.0
    reader = T7Reader(net.data)
    reader.read_object()
    assert (reader.layout.vintage, reader.layout.headless) == (LATE, True)


def test_only_nnx():
    """Since 2011-09-18 only the modules of nnx write values after their tables."""
    net = Net(ASCII).table(1).key("net").table(2)
    net.number(1)
    late_threshold(net, own_values=False)
    net.number(2)
    late_padding(net)
    root = check_read_write(net.data)
    assert isinstance(root, Table)
    reader = T7Reader(net.data)
    reader.read_object()
    assert (reader.layout.vintage, reader.layout.headless) == (NNX, False)


def test_values_that_differ_from_the_table():
    """The table and the values after it came from one object; if they differ the layout is another."""
    net = Net(ASCII).table(2).key("net")
    late_threshold(net, val=3)
    net.key("name").string("n")
    with pytest.raises(CorruptError) as caught:
        read(net.data)
    assert HINT not in str(caught.value)


def test_an_integer_was_cut_off():
    """C cut 0.5 to 0 where it wrote an integer; the table still has it."""
    net = Net(ASCII).table(1).key("net").object("nn.SpatialUpSampling").table(2).key("dW").number(2)
    net.key("dH").number(2.5)
    net.ints(2, 2)
    assert check_read_write(net.data)["net"]["dH"] == 2.5


def test_a_long_was_cut_off():
    """The same of a C long, as which `nn.Narrow` wrote its index and length."""
    net = Net(ASCII).table(2).key("net").object("nn.Narrow").table(3).key("dimension").number(1)
    net.key("index").number(2.5).key("length").number(3)
    net.ints(1).longs(2).longs(3)
    net.key("name").string("n")
    root = check_read_write(net.data)
    assert (root["net"]["index"], root["name"]) == (2.5, b"n")


def test_ownership():
    """Torch5 records whether each tensor owns its storage; a file of views is restored."""
    net = Net(ASCII, torch5=True)
    net.tensor(1, 2, owned=0).tensor(3).table(1)
    net.number(1)
    net.object("nn.Tanh").tensor(4, owned=0).tensor()
    check_read_write(net.data)
    reader = T7Reader(net.data)
    reader.read_object()
    assert reader.layout.unowned == (1, 7)


def test_as_a_file_of_today():
    """Read from an old file, a network is an object like any other."""
    root = read(two_layers(ASCII).data)
    assert description(read(written(root))) == description(root)


@pytest.mark.parametrize("behind", [b"0\n", b"1\n5\n", b"4\n"])
def test_something_follows(behind):
    """A file is only read as of that time where that explains all of it."""
    data = two_layers(ASCII).data
    reader = T7Reader(data + behind)
    with pytest.raises(CorruptError, match="2010 or 2011"):
        reader.read_object()


def test_damaged():
    """If two objects were understood, the message names the age of the file; otherwise it is today's."""
    net = Net(ASCII).state().table(3)
    for number in (1, 2, 3):
        net.number(number)
        net.object("nn.Add").state().tensor(5, 6).tensor()
    cut = net.data.rindex(b"5 6")
    with pytest.raises(TruncatedError, match=r"root\.modules\[3\].*2010 or 2011"):
        read(net.data[:cut] + b"5")
    net = Net(ASCII).object("nn.Tanh").state()
    with pytest.raises(CorruptError, match="not followed by a table") as caught:
        read(net.data + b"1\n")
    assert HINT not in str(caught.value)


def test_several_tensors_are_no_network():
    """Tensors, and tensors and a table, are values of their own, as they always were."""
    stream = Net(ASCII).tensor(1).tensor(2).table(0)
    reader = T7Reader(stream.data)
    values = [reader.read_object() for _ in range(3)]
    assert [type(value) for value in values] == [Tensor, Tensor, Table]
    assert reader.at_end
    assert reader.layout == ASCII
    stream = Net(ASCII).tensor(1).tensor(2).table(1)
    stream.number(1)
    stream.object("my.Class").table(0)
    reader = T7Reader(stream.data)
    assert isinstance(reader.read_object(), Tensor)
    assert [type(reader.read_object()) for _ in range(2)] == [Tensor, Table]


def test_files_of_today_are_read_as_ever():
    """An nn module with a table of fields is never taken for an older one, whatever its class wrote once."""
    for name in RELEASES[FIELDS]:
        data = written(TorchObject(name, fields=Table.of({"gradInput": None, "kW": 3})), ASCII)
        reader = T7Reader(data)
        reader.read_object()
        assert reader.layout == ASCII


def empty(release: str) -> Tensor:
    """A tensor without elements; Torch5 had one class of tensors."""
    return Tensor(FLOAT64, Storage(FLOAT64, 0, b""), alias="torch.Tensor" if release == TORCH5 else None)


def filled(release: str, name: str) -> TorchObject:
    """An object of a class with a value in every field that its layout names."""
    one = empty(release)
    made = {"state": one, "object": one, "table": Table(), "bool": True, "double": 0.5}
    obj = TorchObject(name)
    while name:
        parent, arrow, own = RELEASES[release].get(name, "").rpartition(">")
        for part in filter(None, map(str.strip, own.split(";"))):
            words = part.partition(" if ")[0].split()
            for word in words[1:] if words[0] != "fields" and " if " not in part else []:
                obj[word] = made.get(words[0], 9.0)
        name = parent.strip() if arrow else "nn.Module"
    return obj


@pytest.mark.parametrize("release", RELEASES)
def test_every_class(release):
    """Each row is read as written."""
    headless = T7Layout(encoding="ascii", vintage=release, headless=True)
    for name in RELEASES[release]:
        if vintage_payload(release, name) is None:
            continue
        root = filled(release, "nn.Sequential")
        root["gradInput"] = root["output"] = empty(release)
        root["modules"] = Table.from_list([filled(release, name), filled(release, "nn.Tanh")])
        assert description(check_read_write(written(root, headless))) == description(root), name


def test_a_field_without_a_place():
    """Nothing is dropped silently: what a class of that time cannot hold is refused."""
    layout = T7Layout(encoding="ascii", vintage=FIELDS, headless=True)
    root = read(two_layers(ASCII).data)
    root["modules"][1]["name"] = b"first"
    with pytest.raises(WriteError, match="cannot hold the field"):
        written(root, layout)
    assert read(written(root, evolve(layout, vintage="", headless=False)))["modules"][1]["name"] == b"first"


@pytest.mark.parametrize("value", [None, b"3", 2.5])
def test_a_field_of_the_wrong_type(value):
    """A missing number, a value that is not one, or one that does not fit an integer is refused too."""
    root = TorchObject("nn.Sum", fields=Table.of({"dimension": value}))
    with pytest.raises(WriteError, match="dimension"):
        written(root, T7Layout(encoding="ascii", vintage=FIELDS))


@pytest.mark.parametrize("value", [b"3", -1.0, 2.5, True, False])
def test_a_class_that_is_not_ignored(value):
    """-1 stands for no field: so that itself is refused, as any value of another type, where no table has it."""
    root = filled(FIELDS, "nn.SpatialMSECriterion")
    root["ignoreClass"] = None
    layout = T7Layout(encoding="ascii", vintage=FIELDS)
    assert b"-1" in written(root, layout)
    root["ignoreClass"] = value
    with pytest.raises(WriteError, match="ignoreClass"):
        written(root, layout)


@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_that_is_no_number(value):
    """Read, it would be 1 or 0: where no table has the field it is refused."""
    for field_name in ("resampleTarget", "nbGradients"):  # a double, an integer
        root = filled(FIELDS, "nn.SpatialMSECriterion")
        root[field_name] = value
        with pytest.raises(WriteError, match=field_name):
            written(root, T7Layout(encoding="ascii", vintage=FIELDS))


@pytest.mark.parametrize("value", [b"3", Table()])
def test_a_value_of_another_type_after_its_table(value):
    """A file with a number for it after the table could not be read: no reader would take the two for one value."""
    root = filled(NNX, "nn.SpatialMSECriterion")
    layout = T7Layout(encoding="ascii", vintage=NNX)
    for same_value in (False, 2.0, 2.5, -1.0):
        root["ignoreClass"] = same_value
        assert read(written(root, layout))["ignoreClass"] == same_value
    root["ignoreClass"] = value
    with pytest.raises(WriteError, match="ignoreClass"):
        written(root, layout)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e9])
def test_a_number_that_is_no_integer_in_c(value):
    """It cannot be written after the table, which has it: no reader would take the two for one value."""
    root = TorchObject("nn.Narrow", fields=Table.of({"dimension": value, "index": 1.0, "length": 1.0}))
    for encoding in ("binary", "ascii"):
        with pytest.raises(WriteError, match=r"dimension|3000000000 does not fit a 4-byte integer"):
            written(root, T7Layout(vintage=LATE, encoding=encoding))


def test_layouts_of_any_number_of_classes_are_not_kept() -> None:
    """A file may name millions of classes, whose layouts must not stay in memory after it."""
    count = 3000
    for number in range(count):
        assert vintage_payload("2011-06", f"nn.Class{number}") is not None
    assert vintage_payload.cache_info().currsize < count
