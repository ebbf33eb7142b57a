"""Globals that no model needs and that attacks are made of: what runs code, or reaches the system.

A list like this cannot be complete, and nothing depends on it: pickles are never executed here, whatever they name. It
is there so that a file that would attack other readers is refused, and not carried along.

Source: PyTorch 2.13 `torch/_weights_only_unpickler.py` (`_blocklisted_modules`); the names that published exploits use.
"""

from __future__ import annotations

_MODULE_WORDS = """
_ctypes _frozen_importlib _io _pickle _posixsubprocess _thread _winapi asyncio atexit bdb bz2 cProfile cPickle code
codeop commands concurrent ctypes distutils doctest ensurepip ftplib gc gzip http httplib idlelib imaplib imp
importlib inspect lib2to3 linecache lzma mailcap marshal mmap msvcrt multiprocessing nt os pdb pickle pickletools
pip pkgutil platform popen2 poplib posix profile pty pydoc requests runpy select setuptools shelve shutil signal
site smtplib socket socketserver sqlite3 ssl subprocess sys tarfile telnetlib tempfile threading timeit trace turtle
urllib urllib2 urllib3 uuid venv webbrowser winreg xmlrpc zipfile zipimport
"""
_NAMES = {
    "builtins": "__import__ apply breakpoint compile delattr eval exec execfile exit file globals help input locals "
    "open quit raw_input reload setattr vars",
    "operator": "attrgetter itemgetter methodcaller",
    "types": "CodeType FunctionType ModuleType",
    "torch": "load hub ops classes save",
    "torch.serialization": "load save",
    "torch.jit": "load save",
    "torch.package": "*",
    "torch.hub": "*",
    "torch.utils.cpp_extension": "*",
    "torch.utils.bottleneck": "*",
    "torch.utils.collect_env": "*",
    "torch.jit.unsupported_tensor_ops": "*",
    "numpy.testing._private.utils": "*",
    "numpy.f2py": "*",
    "numpy": "load save fromfile memmap",
}
_MODULES = frozenset(_MODULE_WORDS.split())
_BY_MODULE = {module: frozenset(names.split()) for module, names in _NAMES.items()}


def is_forbidden(module: str, name: str) -> bool:
    """Whether a global runs code or reaches the system. A name with dots is a path: `torch.nn` and `os.system` too."""
    if module.partition(".")[0] in _MODULES or not _MODULES.isdisjoint(name.split(".")):
        return True
    names = _BY_MODULE.get(module, frozenset())
    return "*" in names or name.partition(".")[0] in names
