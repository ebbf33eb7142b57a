"""A class whose Lua code has `write` and `read` methods of its own."""

import t7bridge


@t7bridge.register_class("corpus.Custom")
class Custom:
    """Lua: `f:writeInt(self.a); f:writeObject({twice = self.a * 2}); f:writeDouble(self.a / 4)`."""

    @staticmethod
    def read(reader, obj):
        """Read what follows the class name."""
        obj["a"] = float(reader.read_int())
        obj["rest"] = reader.read_object()
        obj["quarter"] = reader.read_double()

    @staticmethod
    def write(writer, obj):
        """Write the same."""
        writer.write_int(int(obj["a"]))
        writer.write_object(obj["rest"])
        writer.write_double(obj["quarter"])


custom = t7bridge.load("testfiles/format/object_custom_write.t7")["c"]
print(custom.class_name, custom["a"], custom["rest"]["twice"], custom["quarter"])
