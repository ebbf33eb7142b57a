"""scan_cases.py OUTDIR: further files for `scan`, put together by hand: `runs`, `trust` and `plain`; see README.md.

With PyTorch 2.13 and numpy. Nothing in them does more than print, or create a module; `../scan/README.md` has a row each.
"""
import collections, io, json, pickle, shutil, struct, sys, tarfile, zipfile
from pathlib import Path
import numpy as np
import torch
import torch.distributed.checkpoint as dcp

OUT = Path(sys.argv[1])
RUNS, TRUST, PLAIN = OUT / "runs", OUT / "trust", OUT / "plain"
for folder in (RUNS, TRUST, PLAIN): folder.mkdir(parents=True, exist_ok=True)

PRINT = b"\x80\x02cbuiltins\nprint\nX\x08\0\0\0EXECUTED\x85R."
LINEAR, RELU = b"ctorch.nn.modules.linear\nLinear\n", b"ctorch.nn.modules.activation\nReLU\n"


def zipped(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items(): archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def pt(data): return zipped({"archive/data.pkl": data, "archive/version": "3\n"})
def text(word): return b"X" + struct.pack("<I", len(word)) + word.encode()


# Classes of plain state, called
NAMESPACE = b"cargparse\nNamespace\n)\x81}" + text("append") + LINEAR + b"sb"
CALLS = {
    "called_class": LINEAR + b"K\3K\4\x86R.",
    "called_without_arguments": RELU + b")R.",
    "called_inst": b"(K\3K\4itorch.nn.modules.linear\nLinear\n.",
    "called_obj": b"(" + LINEAR + b"K\3K\4o.",
    "called_reconstructor": b"ccopyreg\n_reconstructor\n" + LINEAR + LINEAR + b"K\3\x87R.",
    "called_from_type": b"ctorch._tensor\n_rebuild_from_type_v2\n(" + LINEAR + b"ctorch\nTensor\nK\3K\4\x86}tR.",
    "called_generator_ctor": b"cnumpy.random._pickle\n__generator_ctor\n" + text("x") + RELU + b"\x86R.",
    "called_append": NAMESPACE + b"K\3a.",
    "called_set_item": b"ctorch.nn.modules.container\nModuleDict\n)\x81" + text("a") + b"Ns.",
    "called_setstate": b"ccollections\nOrderedDict\n)R}" + text("__setstate__") + LINEAR + b"sbK\3b.",
    "called_instance": RELU + b")\x81}" + text("forward") + LINEAR + b"sbK\3\x85R.",
    "data_loader": b"ctorch.utils.data.dataloader\nDataLoader\n)\x81}b.",
    "data_pipe": b"ctorch.utils.data.datapipes.iter.callable\nMapperIterDataPipe\n)\x81.",
    "gds_file": b"ctorch.cuda.gds\nGdsFile\n" + text("x") + b"\x85R.",
    "dotted_name": b"\x8c\x0ctorch.serial\x94\x8c\x0cization.load\x94\x93.",
    "ordered_key_of_another_module": b"ctorch.nn.functional\nboolean_dispatch\n.",
    "extension_code": b"\x82\x01.",
    "computed_name": b"ctorch\nTensor\n" + text("x") + b"\x93.",
}
for name, data in CALLS.items(): (RUNS / f"{name}.pt").write_bytes(pt(b"\x80\x02" + data))

# Files in files
(RUNS / "member_without_suffix.pt").write_bytes(zipped({"a/data.pkl": b"\x80\x02}.", "a/version": "3\n", "a/extra/hidden": PRINT}))
(RUNS / "member_of_protocol_0.pt").write_bytes(zipped({"a/data.pkl": b"\x80\x02}.", "a/version": "3\n", "a/x": b"cbuiltins\nprint\n(S'EXECUTED'\ntR."}))
(RUNS / "member_zip.pt").write_bytes(zipped({"a/data.pkl": b"\x80\x02}.", "a/version": "3\n", "a/extra/m": pt(PRINT)}))
array = io.BytesIO(); np.save(array, np.array([0], dtype=object))
array = array.getvalue()[:128] + PRINT
(RUNS / "object.npy").write_bytes(array)
(RUNS / "member_npy.pt").write_bytes(zipped({"a/data.pkl": b"\x80\x02}.", "a/version": "3\n", "a/x": array}))
(RUNS / "object_without_suffix.npz").write_bytes(zipped({"a.npy": array[:118] + b"'|u1'", "b": array}))
safe = io.BytesIO(); np.save(safe, np.zeros(2))
(RUNS / "second_array.npz").write_bytes(zipped({"a.npy": safe.getvalue(), "b": array}))
(RUNS / "pickle_in.npz").write_bytes(zipped({"a.npy": safe.getvalue(), "b": PRINT}))
(RUNS / "pickle_and_zip.pkl").write_bytes(b"\x80\x02}." + pt(PRINT) + b"\0x")


# Programs
class Script(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        torch.save(x, "written")
        return x


class Add(torch.nn.Module):
    def forward(self, x): return torch.cat([x, x])


try: torch.jit.script(Script()).save(RUNS / "script_save.pt")
except Exception as error:  # the compiler of some releases has no `torch.save`: the operator's line, by hand
    torch.jit.script(Add()).save(RUNS / "script_save.pt")
    with zipfile.ZipFile(RUNS / "script_save.pt") as archive: members = {name: archive.read(name) for name in archive.namelist()}
    code = next(name for name in members if name.endswith(".py"))
    members[code] = members[code].replace(b"    return ", b'    _0 = torch.save(x, "written")\n    return ')
    (RUNS / "script_save.pt").write_bytes(zipped(members))
n = torch.export.Dim("n", min=2, max=64)
torch.export.save(torch.export.export(Add(), (torch.ones(4, 2),), dynamic_shapes=({0: n},)), PLAIN / "dynamic.pt2")
with zipfile.ZipFile(PLAIN / "dynamic.pt2") as archive: members = {name: archive.read(name) for name in archive.namelist()}
graph = next(name for name in members if name.endswith("models/model.json"))


def program(name, change):
    value = json.loads(members[graph]); change(value)
    (RUNS / name).write_bytes(zipped({**members, graph: json.dumps(value)}))


def expression(value):
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            if "expr_str" in part: part["expr_str"] = "print(1)"
            stack += part.values()
        elif isinstance(part, list): stack += part


program("export_expression.pt2", expression)
program("export_guard.pt2", lambda value: value.update(guards_code=["[].__class__.__base__.__subclasses__()"]))
program("export_operator.pt2", lambda value: value["graph_module"]["graph"]["nodes"][-1].update(target="torch.os.system"))
(RUNS / "export_constant.pt2").write_bytes(zipped({**members, graph.replace("models/model.json", "data/constants/custom_obj_0"): pt(PRINT)}))
(RUNS / "export_library.pt2").write_bytes(zipped({**members, graph.replace("models/model.json", "data/aotinductor/model/a.so"): b"\x7fELF"}))


# Folders
def folder(home, name, value):
    shutil.rmtree(home / name, ignore_errors=True)
    dcp.save(value, checkpoint_id=home / name, no_dist=True)
    return home / name


attacked = folder(RUNS, "distributed_member", {"model": {"w": torch.ones(2, 3)}, "step": 3})
found = pickle.loads((attacked / ".metadata").read_bytes())
(info,) = [info for index, info in found.storage_data.items() if index.fqn == "step"]
data = (attacked / info.relative_path).read_bytes()
bad = pt(PRINT)
(attacked / info.relative_path).write_bytes(data + bad)
info.offset, info.length = len(data), len(bad)
(attacked / ".metadata").write_bytes(pickle.dumps(found))
attacked = folder(RUNS, "distributed_metadata", {"w": torch.ones(2)})
(attacked / ".metadata").write_bytes(PRINT)
plain = RUNS / "plain_folder" / "inside"; plain.mkdir(parents=True, exist_ok=True)
(plain / "weights.bin").write_bytes(pt(PRINT)); (plain.parent / "README.md").write_text("A model.\n")
plain = PLAIN / "plain_folder"; plain.mkdir(exist_ok=True)
torch.save({"w": torch.ones(2)}, plain / "weights.bin"); (plain / "README.md").write_text("A model.\n"); (plain / "config.json").write_text("{}")

# Tar
def member(name, data=b"", kind=b"0", prefix=b"", size=None):
    header = bytearray(512)
    header[:len(name)] = name
    header[124:136] = b"%011o\0" % len(data) if size is None else size
    header[148:157] = b" " * 8 + kind
    header[257:265] = b"ustar\x0000"
    header[345:345 + len(prefix)] = prefix
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data + bytes(-len(data) % 512)


count, none = pickle.dumps(0, 2), pickle.dumps([], 2)
sound = {b"storages": count + none, b"tensors": count, b"pickle": pickle.dumps({}, 2)}
def tar(*more): return b"".join(member(name, data) for name, data in sound.items()) + b"".join(more) + bytes(1024)


TARS = {
    "pax_path": (member(b"././@PaxHeader", b"15 path=pickle\n", b"x"), member(b"sys_info", PRINT)),
    "pax_global": (member(b"././@PaxHeader", b"15 path=pickle\n", b"g"), member(b"sys_info", PRINT)),
    "duplicate": (member(b"pickle", PRINT),),
    "long_link": (member(b"././@LongLink", b"pickle\0", b"L"), member(b"sys_info", PRINT)),
    "hard_link": (member(b"sys_info", PRINT), member(b"pickle", b"", b"1")),
    "unknown_kind": (member(b"pickle", PRINT, b"Z"),),
    "base_256": (member(b"pickle", PRINT, size=b"\x80" + len(PRINT).to_bytes(11, "big")),),
}
for name, more in TARS.items(): (RUNS / f"tar_{name}.pt").write_bytes(tar(*more))
(RUNS / "tar_that_is_a_pickle.pt").write_bytes(member(b"I1\n0cbuiltins\nprint\n(S'EXECUTED'\ntR.") + tar())
head = b"\x89HDF\r\n\x1a\n"
(RUNS / "tar_that_is_hdf5.pt").write_bytes(member(head) + b"".join(member(n, d) for n, d in {**sound, b"pickle": PRINT}.items()) + bytes(1024))

# Ordinary files
np.savez(TRUST / "object.npz", names=np.array(["a", None, 3], dtype=object), w=np.zeros(2, np.float32))
np.save(PLAIN / "array.npy", np.arange(3))
torch.jit.script(Add()).save(PLAIN / "script_cat.pt")
for name, value in {
    "module_nested": torch.nn.ModuleDict({"a": torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU()), "b": torch.nn.TransformerEncoderLayer(4, 2, 8)}),
    "distribution": torch.distributions.Normal(torch.zeros(2), torch.ones(2)),
    "packed_sequence": torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)]),
    "deque": collections.deque([1, 2], 5),
    "range": range(3),
    "path": Path("a/b"),
    "class_as_value": {"norm": torch.nn.BatchNorm2d, "act": torch.nn.functional.relu},
    "string_array": np.array(["a", "b"]),
}.items(): torch.save(value, TRUST / f"{name}.pt")
(TRUST / "protocol_1.pkl").write_bytes(pickle.dumps({"a": [1, 2.5, (3,)], "b": collections.OrderedDict(x=1)}, 1))
