"""Classification of the names in pickles by their effect in a reader that imports and calls them: one list for all
verbs.

`standing` is the single classification: names are harmless by enumeration only, each for one kind of use. The names are
those of `WEIGHTS_ONLY`, and of `names.txt`, made by `docs/generate_names.py` from PyTorch, numpy and Python.
Reading refuses forbidden names; `scan` reports these, foreign ones and uses beyond the kind; writing uses the others
only, unless more is requested.

Everything listed is harmless whatever calls it, except constructors of classes of plain state. So it is enough to look
for calls of these: by the pickle itself (`may_call`), or by a function that receives the class as an argument.

Sources: PyTorch 2.13 `torch/_weights_only_unpickler.py` (`_get_allowed_globals`, `_blocklisted_modules`), CPython 3.11
`Lib/_compat_pickle.py`; the names that published exploits use. The list of the forbidden cannot be complete, and
nothing depends on it: pickles are never executed here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ....graph.python import PythonGlobal, PythonObject

SAFE, STATE, CALL, FILL, VALUE = "safe", "state", "call", "fill", "value"
"""Kinds of harmless names. Read by `torch.load(weights_only=True)`, however used; a class without code at construction,
whose objects are made by NEWOBJ and BUILD; may be called; may be called, and the result filled; may only be named."""
FORBIDDEN, FOREIGN = "forbidden", "foreign"
"""Runs code or reaches the system; anything else."""
CALLED = "called"
"""A use beyond the kind."""


def words(text: str, prefix: str = "") -> frozenset[str]:
    """Return the words of a text, each with a prefix."""
    return frozenset(prefix + word for word in text.split())


_KINDS = "BFloat16 Bool Byte Char Double Float Half Int Long Short"
_SPARSE = " ".join(f"{kind}Tensor" for kind in _KINDS.split() if kind != "Bool")
_BOTH = " ".join(f"{kind}{what}" for kind in f"{_KINDS}".split() for what in ("Tensor", "Storage"))
_COMPLEX = "ComplexDoubleStorage ComplexFloatStorage"
_TORCH = f"""
{_BOTH} {_COMPLEX} QInt32Storage QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage Size Tensor device
bfloat16 bool bits16 bits1x8 bits2x4 bits4x2 bits8 complex128 complex32 complex64 float16 float32 float64
float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
int1 int2 int3 int4 int5 int6 int7 int8 int16 int32 int64
uint1 uint2 uint3 uint4 uint5 uint6 uint7 uint8 uint16 uint32 uint64
per_channel_affine per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine per_tensor_symmetric
qint32 qint8 quint2x4 quint4x2 quint8 _tensor._rebuild_from_type_v2 nn.parameter.Parameter serialization._get_layout
storage.TypedStorage storage.UntypedStorage
"""
_REBUILD = """
device_tensor_from_cpu_tensor device_tensor_from_numpy meta_tensor_no_storage nested_tensor parameter
parameter_with_state qtensor sparse_tensor tensor tensor_v2 tensor_v3 wrapper_subclass
"""
WEIGHTS_ONLY = (
    words(_TORCH, "torch.")
    | words(_REBUILD, "torch._utils._rebuild_")
    | words(f"{_BOTH} {_COMPLEX}", "torch.cuda.")
    | words(_SPARSE, "torch.sparse.")
    | words(_SPARSE, "torch.cuda.sparse.")
    | words("_codecs.encode builtins.bytearray builtins.complex builtins.set collections.Counter")
    | {"collections.OrderedDict"}
)
"""The globals allowed by `torch.load(weights_only=True)` of PyTorch 2.13."""

_MODULES = words(
    """
    _ctypes _frozen_importlib _io _pickle _posixsubprocess _thread _winapi asyncio atexit bdb bz2 cProfile cPickle code
    codeop commands concurrent ctypes distutils doctest ensurepip ftplib gc gzip http httplib idlelib imaplib imp
    importlib inspect lib2to3 linecache lzma mailcap marshal mmap msvcrt multiprocessing nt os pdb pickle pickletools
    pip pkgutil platform popen2 poplib posix profile pty pydoc requests runpy select setuptools shelve shutil signal
    site smtplib socket socketserver sqlite3 ssl subprocess sys tarfile telnetlib tempfile threading timeit trace turtle
    urllib urllib2 urllib3 uuid venv webbrowser winreg xmlrpc zipfile zipimport
    """
)
"""Modules of which every name is forbidden, except data."""
_PREFIXES = (
    words(
        "__import__ apply breakpoint compile delattr eval exec execfile exit file globals help input locals open quit "
        "raw_input reload setattr vars",
        "builtins.",
    )
    | words("operator.attrgetter operator.itemgetter operator.methodcaller")
    | words("types.CodeType types.FunctionType types.ModuleType")
    | words("load hub ops classes save _ops _classes package _inductor", "torch.")
    | words("serialization.load serialization.save jit.load jit.save jit.unsupported_tensor_ops", "torch.")
    | words("cuda.CUDAPluggableAllocator cuda.memory.CUDAPluggableAllocator cuda.gds utils.data.datapipes", "torch.")
    | words("utils.cpp_extension utils.bottleneck utils.collect_env utils._config_module", "torch.")
    | words("fx.graph_module.reduce_graph_module fx.graph_module._exec_with_source", "torch.")
    | words("numpy.testing numpy.f2py numpy.load numpy.save numpy.fromfile numpy.memmap numpy.distutils")
)
"""Prefixes of forbidden names: `numpy.f2py.crackfortran.myeval`."""
_DEEPEST = max(prefix.count(".") + 1 for prefix in _PREFIXES)


@cache
def _table() -> dict[str, str]:
    """Return the kind of each name in `names.txt`, which is read when a file first holds a name beyond tensors."""
    kinds: dict[str, str] = {}
    text = Path(__file__).with_name("names.txt").read_text("ascii")
    for line in text.replace("\n  ", " ").splitlines():
        if not line.startswith("#"):
            kind, prefix, *listed = line.split(" ")
            kinds.update((prefix.replace("*", word) + word, kind) for word in listed)
    return kinds


def standing(module: str, name: str) -> str:
    """Classify a global as one of the kinds above.

    Args:
        module: the module to import, `numpy.f2py.crackfortran`.
        name: the name to look up in it; one with dots is a path, `torch.nn` or `os.system`.
    """
    path = f"{module}.{name}"
    if path in WEIGHTS_ONLY:
        return SAFE
    if "." not in name and path in _table():
        return _table()[path]
    if _is_forbidden(module, name):
        return FORBIDDEN
    python3 = renamed(module, name)
    return FOREIGN if python3 == (module, name) else standing(*python3)


def may_call(kind: str, how: str, args: object) -> bool:
    """Return whether an object may be made of a name.

    Args:
        kind: of the name.
        how: as in `PythonObject`.
        args: the arguments.
    """
    if kind == STATE:  # INST and OBJ without arguments construct nothing either
        return how.startswith("newobj") or (how == "inst" and not args)
    return kind in (SAFE, CALL, FILL)


def may_fill(module: str, name: str) -> bool:
    """Return whether objects of a class may receive items; of foreign classes, which are named anyway, they may."""
    found = standing(module, name)
    return found in (FORBIDDEN, FOREIGN) or _table().get(f"{module}.{name}") == FILL


def _is_forbidden(module: str, name: str) -> bool:
    if module.partition(".")[0] in _MODULES or not _MODULES.isdisjoint(name.split(".")):
        return True
    prefix = ""
    for word in f"{module}.{name}".split(".", _DEEPEST)[:_DEEPEST]:
        prefix = f"{prefix}.{word}" if prefix else word
        if prefix in _PREFIXES:
            return True
    return False


def renamed(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 name of a Python 2 name, as every unpickler of protocols 0 to 2 looks it up."""
    import _compat_pickle

    new = _compat_pickle.NAME_MAPPING.get((module, name))
    return new or (_compat_pickle.IMPORT_MAPPING.get(module, module), name)


def is_copyreg(value: Any) -> bool:
    """Return whether a value is a function of `copyreg`, which constructs the class that it receives."""
    return isinstance(value, PythonGlobal) and value.module in ("copyreg", "copy_reg")


def is_torch(module: str) -> bool:
    """Return whether a name is PyTorch's own, whatever its effect."""
    return module == "torch" or module.startswith("torch.")


def may_name(value: Any, allow_foreign: bool) -> bool:
    """Return whether a class or function, or the class of an object, may be named in a file.

    Args:
        value: a `PythonGlobal` or `PythonObject`.
        allow_foreign: whether names of other packages may be written too. Forbidden ones never are.
    """
    how, args, names = "", (), [value]
    if isinstance(value, PythonObject):
        names, how, args = [value.constructor], value.how, value.args
        if is_copyreg(value.constructor):
            names += value.args[:1] if isinstance(value.args, tuple) else []
    for name in names:
        if not isinstance(name, PythonGlobal):  # a class returned by a call: the names in it are judged separately
            if not allow_foreign:
                return False
            continue
        found = standing(name.module, name.name)
        wrong = found == FOREIGN or (how != "" and name is names[0] and not may_call(found, how, args))
        if found == FORBIDDEN or (wrong and not allow_foreign):
            return False
    return True
