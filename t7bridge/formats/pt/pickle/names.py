"""The names in pickles: which PyTorch's safe loader takes, and which of the others run code or reach the system.

One table decides what `scan` calls clean and what is written: `weights_only.txt`, made by
`docs/generate_weights_only.py` from PyTorch. Every other name is foreign to that loader. Reading makes inert values of
foreign names too, and refuses the forbidden ones. The list of the forbidden cannot be complete, and nothing depends on
it: pickles are never executed here.

Sources: PyTorch 2.13 `torch/_weights_only_unpickler.py` (`_get_allowed_globals`, `_blocklisted_modules`), CPython 3.11
`Lib/_compat_pickle.py`; the names that published exploits use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ....data import words_beside
from ....graph.python import PythonGlobal, PythonObject


def words(text: str, prefix: str = "") -> frozenset[str]:
    """Return the words of a text, each with a prefix."""
    return frozenset(prefix + word for word in text.split())


class _Table(NamedTuple):
    """What PyTorch's safe loader accepts in pickles.

    Attributes:
        names: the globals, by their paths: `torch._utils._rebuild_tensor_v2`.
        called: those of `names` that it calls (REDUCE).
        constructed: those of `names` of which it makes objects (NEWOBJ).
        operations: the opcodes, by their names in `opcodes`.
        attributes: the attributes of tensors that are read only: a state that sets one fails.
        modules: modules that it renames: from the name in Python 2 to that in Python 3.
    """

    names: frozenset[str]
    called: frozenset[str]
    constructed: frozenset[str]
    operations: frozenset[str]
    attributes: frozenset[str]
    modules: dict[str, str]


def _read_table() -> _Table:
    """Return the table of `weights_only.txt`, whose lines are of four kinds.

    `name PATH [call] [new]`, `operation NAME`, `attribute NAME` and `module OLD NEW`.
    """
    uses: dict[str, list[str]] = {}
    """By the path of each name: `call` if the loader calls it, `new` if it makes objects of it; both, or neither."""
    operations: list[str] = []
    attributes: list[str] = []
    modules: dict[str, str] = {}
    for line in words_beside(__file__, "weights_only.txt").splitlines():
        if line.startswith("#"):
            continue
        kind, word, *rest = line.split(" ")
        if kind == "name":
            uses[word] = rest
        elif kind == "operation":
            operations.append(word)
        elif kind == "attribute":
            attributes.append(word)
        else:  # `module`
            (new_name,) = rest
            modules[word] = new_name
    called = frozenset(name for name, name_uses in uses.items() if "call" in name_uses)
    constructed = frozenset(name for name, name_uses in uses.items() if "new" in name_uses)
    return _Table(frozenset(uses), called, constructed, frozenset(operations), frozenset(attributes), modules)


SAFE = _read_table()
"""What `torch.load(weights_only=True)` of PyTorch 2.13 takes."""
WEIGHTS_ONLY = SAFE.names
"""The globals that it allows."""
SCRIPT_MODULES = ("torch.jit._pickle", "__torch__")
"""Modules of names that only C++ looks up, in archives of TorchScript."""

_FORBIDDEN_MODULES = words(
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
_FORBIDDEN_PREFIXES = (
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
_MOST_WORDS = max(prefix.count(".") + 1 for prefix in _FORBIDDEN_PREFIXES)
"""Number of words of the longest prefix."""
_FOLDER_OF_ALIASES = ".six.moves."
"""In a path with a dot before it: six, or a copy of it in another package, imports Python's modules by other names,
`six.moves.builtins`. Python's pickler never writes these names."""


_ORDINARY_PACKAGES = words("torch numpy collections copyreg argparse datetime decimal fractions pathlib")
"""Packages whose objects many checkpoints hold."""
_DATA_CLASSES = words(
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple", "builtins."
)
_DATA_CLASSES |= {"uuid.UUID", "uuid.SafeUUID"}
"""Types of data, also of modules that are forbidden otherwise."""


def is_forbidden(module: str, name: str) -> bool:
    """Return whether a name runs code or reaches the system.

    Args:
        module: the module to import, `numpy.f2py.crackfortran`.
        name: the name to look up in it; one with dots is a path, `torch.nn` or `os.system`.
    """
    path = f"{module}.{name}"
    if path in WEIGHTS_ONLY or path in _DATA_CLASSES:
        return False
    # A name of Python 2 is also judged by what it is called in Python 3.
    return _is_listed(module, name) or _is_listed(*renamed(module, name))


def _is_listed(module: str, name: str) -> bool:
    """Return whether a name is in the lists of the forbidden: by its package, a word, an alias or a prefix of it.

    Args:
        module: the module that is imported.
        name: the path of attributes in it.
    """
    package = module.partition(".")[0]
    # Attributes lead to the modules that a module has imported: `os.system` in `torch`. The further words of `module`
    # are its own submodules, which may be called as a forbidden one: `torch.signal`, `torch.multiprocessing`.
    if package in _FORBIDDEN_MODULES or not _FORBIDDEN_MODULES.isdisjoint(name.split(".")):
        return True
    path = f"{module}.{name}"
    if _FOLDER_OF_ALIASES in f".{path}":
        return True
    prefix = ""
    # No prefix is longer; the rest of a name of very many words would be joined again with each word.
    first_words = path.split(".", _MOST_WORDS)[:_MOST_WORDS]
    for word in first_words:
        prefix = f"{prefix}.{word}" if prefix else word
        if prefix in _FORBIDDEN_PREFIXES:
            return True
    return False


def renamed(module: str, name: str) -> tuple[str, str]:
    """Return module and name in Python 3 of a Python 2 name, as every unpickler of protocols 0 to 2 looks it up.

    Other names are returned as they are.
    """
    import _compat_pickle  # only pickles of Python 2 need it

    new_name = _compat_pickle.NAME_MAPPING.get((module, name))
    if new_name is not None:
        return new_name
    return _compat_pickle.IMPORT_MAPPING.get(module, module), name


def is_copyreg(value: Any) -> bool:
    """Return whether a value is a function of `copyreg`, which constructs the class that it receives."""
    return isinstance(value, PythonGlobal) and value.module in ("copyreg", "copy_reg")


def is_torch(module: str) -> bool:
    """Return whether a name is PyTorch's own, whatever its effect."""
    return module == "torch" or module.startswith("torch.")


def is_ordinary(path: str) -> bool:
    """Return whether a name is in a package whose objects many checkpoints hold, or is one of Python's data classes.

    Conversions do not warn of these; `scan` names them all. Whether a name runs code is another question, which
    `is_forbidden` answers: `torch.hub.load` is ordinary.
    """
    if path.startswith("torch.distributed."):  # the file may have a part of a tensor, which users should know
        return False
    return path.partition(".")[0] in _ORDINARY_PACKAGES or path in _DATA_CLASSES


def may_name(value: Any, allow_foreign: bool) -> bool:
    """Return whether a class or function, or the class of an object, may be named in a file.

    Without `allow_foreign` only names are written that PyTorch's safe loader takes, and no objects: those that it knows
    have a type of their own here.

    Args:
        value: a `PythonGlobal` or `PythonObject`.
        allow_foreign: whether names of other packages may be written too. Forbidden ones never are.
    """
    if not allow_foreign:
        return isinstance(value, PythonGlobal) and value.path in WEIGHTS_ONLY
    names = [value]
    if isinstance(value, PythonObject):
        names = [value.constructor]
        if is_copyreg(value.constructor) and isinstance(value.args, tuple):
            names += value.args[:1]  # the class that the function constructs
    # A class returned by a call is no name: those in the call are judged for themselves.
    return not any(isinstance(name, PythonGlobal) and is_forbidden(name.module, name.name) for name in names)
