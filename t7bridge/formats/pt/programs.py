"""Programs in PyTorch's archives, as far as loading or running them reaches beyond tensors. Nothing is executed.

- TorchScript is an own language, whose interpreter can read and write files (`aten::save`, `aten::from_file`).
- The graphs of torch.export name their operators by paths into Python, and `torch.export.load` evaluates expressions of
  sizes with sympy, and guards with Python.
- Compiled libraries run as they are.

Source: PyTorch 2.13 `torch/_export/serde/serialize.py` (`deserialize_operator`, `_parse_sym_expr`),
`torch/export/_unlift.py` (`_convert_guards_code_to_fn`), `aten/src/ATen/native/native_functions.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...errors import CorruptError
from ...io.source import ByteSource
from ..fields import parse_json
from .pickle.names import words
from .zip import ZipArchive

_SCRIPT_FILES = re.compile(rb"\b(?:torch|ops\.aten)\.(save|from_file)\s*\(|\baten::(save|from_file)\b")
_COMPILED = (".so", ".dll", ".dylib", ".cubin", ".hsaco", ".ptx", ".spv", ".cpp", ".o")
_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.(?!from_file\b|save\b)(?!__)\w+(?:\.(?!__)\w+)?"
    r"|torch\.ops\.aten\.__i?(?:and|or|xor|lshift|rshift)__\.\w+"
    r"|torch\.(?:_?sym_\w+|_check\w*|_assert\w*|_C\._set_grad_enabled|_C\._functorch\.\w+)"
    r"|_operator\.(?!call|methodcaller|attrgetter|itemgetter)\w+|math\.\w+|#[\w.:]*"
)
_QUOTED = re.compile(r"'[\w. -]*'|\"[\w. -]*\"")
_NAME = re.compile(r"[^\W\d]\w*")
_SYMBOL = re.compile(r"[a-z]{1,3}\d+\Z")
_ALLOWED = words(
    """
    Add Mul Symbol Dummy True False positive negative integer nonnegative nonpositive nonzero zero real finite even
    odd commutative extended_real extended_positive extended_nonnegative evaluate FloorDiv ModularIndexing Where
    PythonMod Mod CleanDiv CeilToInt FloorToInt CeilDiv IntTrueDiv FloatTrueDiv LShift RShift
    IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat FloatPow PowByNatural
    Identity Max Min Abs Eq Ne Gt Ge Lt Le And Or Not Pow Rational Integer Float ceiling floor sqrt log log2 exp sin
    cos tan oo int_oo OpaqueUnaryFn_sqrt OpaqueUnaryFn_exp OpaqueUnaryFn_log OpaqueUnaryFn_log2 OpaqueUnaryFn_sin
    OpaqueUnaryFn_cos OpaqueUnaryFn_tanh Piecewise True False zoo nan E I pi L args kwargs size stride
    storage_offset item dim math isnan inf and or not is None dtype device requires_grad max min abs sym_not sym_max
    sym_min torch e
    """
)
"""Functions of sizes, and what guards ask of inputs."""
_PLAIN = re.compile(r"[\w\s+\-*/%(),.<>=!&|~\[\]^]*\Z")
_GRAPH_BYTES = 1 << 28


def effects(archive: ZipArchive) -> Iterator[tuple[str, str]]:
    """Yield what the programs of an archive reach: a description of the kind, and its name.

    Raises:
        FormatError: a member is damaged.
    """
    seen: set[tuple[str, str]] = set()
    for name, member in archive.members.items():
        lower = name.lower()
        found: list[tuple[str, str]] = []
        if lower.endswith(_COMPILED):
            found = [("compiled code", name)]
        elif lower.endswith((".py", "bytecode.pkl")):
            operators = {match[1] or match[2] for match in _SCRIPT_FILES.finditer(archive.read(name))}
            found = [("script operation", f"aten::{each.decode()}") for each in sorted(operators)]
        elif lower.endswith(".json") and ("models/" in lower or lower.endswith("serialized_exported_program.json")):
            source, start = archive.span(name)
            found = list(_of_graph(source, start, member.size, name))
        for each in found:
            if each not in seen:
                seen.add(each)
                yield each


def _of_graph(source: ByteSource, start: int, size: int, name: str) -> Iterator[tuple[str, str]]:
    if size > _GRAPH_BYTES:
        raise CorruptError("the graph is too large", path=name, found=f"{size} bytes")
    stack: list[Any] = [parse_json(source.read_exact(start, size, name), name)]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            for key, part in value.items():
                if key == "target" and isinstance(part, str) and ("inputs" in value or "outputs" in value):
                    if not _OPERATOR.fullmatch(part):
                        yield "operator", part
                elif key in ("expr_str", "as_expr", "guards_code"):
                    texts = part if isinstance(part, list) else [part]
                    yield from (("expression", each) for each in texts if isinstance(each, str) and not _is_plain(each))
                if isinstance(part, (dict, list)):
                    stack.append(part)


def _is_plain(text: str) -> bool:
    """Return whether an expression only computes with sizes."""
    text = _QUOTED.sub("0", text)
    return _PLAIN.match(text) is not None and all(
        name in _ALLOWED or _SYMBOL.match(name) for name in _NAME.findall(text)
    )
