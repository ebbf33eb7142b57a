"""A file with several values, as Lua's `torch.DiskFile` writes them one after another."""

import t7bridge

with t7bridge.T7Reader("testfiles/format/stream.t7") as reader:
    print(reader.read_bool())
    print(reader.read_object()["hello"])
    print(reader.read_int(), reader.read_long(), reader.read_float(), reader.read_double())
    tensor = reader.read_object()
    print(tensor.numpy())
    print("the same tensor again:", reader.read_object()["again"] is tensor)
    print("at the end:", reader.at_end)
