"""Classification of the names in pickles by their effect in a reader that imports and calls them: one list for all
verbs.

`standing` is the single classification. Reading refuses forbidden names; `scan` reports these and foreign ones;
writing uses only `safe`, `torch` and `data` names, unless more is requested.

Sources: PyTorch 2.13 `torch/_weights_only_unpickler.py` (`_get_allowed_globals`, `_blocklisted_modules`), CPython 3.11
`Lib/_compat_pickle.py`; the names that published exploits use. The list of the forbidden cannot be complete, and
nothing depends on it: pickles are never executed here.
"""

from __future__ import annotations

import re

from .weights_only import WEIGHTS_ONLY, words

SAFE, DATA, TORCH, FORBIDDEN, FOREIGN = "safe", "data", "torch", "forbidden", "foreign"
"""Read by `torch.load(weights_only=True)`; a harmless class of Python or numpy; PyTorch's own; runs code or reaches the
system; anything else."""


_DATA = (
    words("bool bytes dict float frozenset int list object range slice str tuple", "builtins.")
    | words("ChainMap UserDict UserList UserString defaultdict deque", "collections.")
    | words("date datetime time timedelta timezone", "datetime.")
    | words("Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath", "pathlib.")
    | words("Path PosixPath PurePath PurePosixPath PureWindowsPath WindowsPath", "pathlib._local.")
    | words("MT19937 PCG64 PCG64DXSM Philox SFC64", "numpy.random._bit_generator.")
    | words("__bit_generator_ctor __generator_ctor __randomstate_ctor", "numpy.random._pickle.")
    | words("_reconstruct scalar", "numpy.core.multiarray.")
    | words("_reconstruct scalar", "numpy._core.multiarray.")
    | words("numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer numpy.ma.core.MaskedArray")
    | words("numpy.ma.core._mareconstruct numpy.matrix numpy.recarray numpy.rec.recarray numpy.record")
    | words("numpy.random.mtrand.RandomState numpy.random._mt19937.MT19937 numpy.random._pcg64.PCG64")
    | words("argparse.Namespace types.SimpleNamespace decimal.Decimal fractions.Fraction uuid.UUID uuid.SafeUUID")
    | words("copyreg._reconstructor copyreg.__newobj__ copyreg.__newobj_ex__ zoneinfo.ZoneInfo")
)
_NUMPY = (
    r"numpy\.(?:ndarray|dtype|bool_?|str_|bytes_|void|object_|u?int(?:8|16|32|64|p|c)?_?|float(?:16|32|64|96|128)?_?"
    r"|complex(?:64|128|192|256)?_?|longlong|ulonglong|longdouble|clongdouble|half|single|double|datetime64"
    r"|timedelta64|dtypes\.\w+DType)\Z"
)
"""Scalars, arrays and dtypes, by the names of all releases."""

# PyTorch's classes: an object of them is its attributes. `torch.nn.functional` and its like are pure functions.
_TORCH_CLASS = (
    r"torch\.(?:(?:nn|optim|autograd|distributions|ao\.nn|legacy|cuda|utils\.data)\.(?:[a-z_]\w*\.)*_?[A-Z]\w*"
    r"|(?:ao\.)?quantization\.(?:[a-z_]\w*\.)*\w*(?:Observer|FakeQuantize\w*|Stub|QConfig)"
    r"|(?:nn\.modules\.)?\w*Tensor|storage\._?(?:Typed|Untyped)Storage|nn\.quantized\.(?:[a-z_]\w*\.)*[A-Z]\w*"
    r"|_tensor\.Tensor|tensor\.Tensor|_tensor\._rebuild_from_type|tensor\._rebuild_from_type|Generator|Parameter"
    r"|_utils\._rebuild_\w+|jit\._pickle\.\w+|nn\.backends\.\w+\._get_thnn_function_backend"
    r"|(?:nn\.functional|_C\._nn|_C\._VariableFunctions)?\.?(?:relu6?|r?relu_?|gelu|tanh|sigmoid|silu|mish|elu|selu|celu"
    r"|softmax|log_softmax|logsigmoid|softplus|softsign|tanhshrink|hardtanh|hardsigmoid|hardswish|hardshrink"
    r"|softshrink|leaky_relu|prelu|glu|threshold|dropout|normalize)"
    r"|strided|sparse_(?:coo|csr|csc|bsr|bsc)|_mkldnn|jagged|contiguous_format|preserve_format|channels_last(?:_3d)?)\Z"
)

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
    | words("utils.cpp_extension utils.bottleneck utils.collect_env utils._config_module", "torch.")
    | words("fx.graph_module.reduce_graph_module fx.graph_module._exec_with_source", "torch.")
    | words("numpy.testing numpy.f2py numpy.load numpy.save numpy.fromfile numpy.memmap numpy.distutils")
)
"""Prefixes of forbidden names: `numpy.f2py.crackfortran.myeval`."""
_DEEPEST = max(prefix.count(".") + 1 for prefix in _PREFIXES)


def standing(module: str, name: str) -> str:
    """Classify a global as `SAFE`, `DATA`, `TORCH`, `FORBIDDEN` or `FOREIGN`.

    Args:
        module: the module to import, `numpy.f2py.crackfortran`.
        name: the name to look up in it; one with dots is a path, `torch.nn` or `os.system`.
    """
    path = f"{module}.{name}"
    if path in WEIGHTS_ONLY:
        return SAFE
    if path in _DATA or re.match(_NUMPY, path):
        return DATA
    if _is_forbidden(module, name):
        return FORBIDDEN
    python3 = _renamed(module, name)
    if python3 != (module, name):
        return standing(*python3)
    return TORCH if "." not in name and re.match(_TORCH_CLASS, path) else FOREIGN


def _is_forbidden(module: str, name: str) -> bool:
    if module.partition(".")[0] in _MODULES or not _MODULES.isdisjoint(name.split(".")):
        return True
    prefix = ""
    for word in f"{module}.{name}".split(".", _DEEPEST)[:_DEEPEST]:
        prefix = f"{prefix}.{word}" if prefix else word
        if prefix in _PREFIXES:
            return True
    return False


def _renamed(module: str, name: str) -> tuple[str, str]:
    """Return the Python 3 name of a Python 2 name, as every unpickler of protocols 0 to 2 looks it up."""
    import _compat_pickle

    new = _compat_pickle.NAME_MAPPING.get((module, name))
    return new or (_compat_pickle.IMPORT_MAPPING.get(module, module), name)


def is_torch(module: str) -> bool:
    """Return whether a name is PyTorch's own, whatever its effect."""
    return module == "torch" or module.startswith("torch.")
