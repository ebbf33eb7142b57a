"""Check without PyTorch whether the modules of a plan can be constructed, and whether their tensors fit.

The constructors of the layers in `torchmodules/layers` are read from their source and interpreted statement by
statement: they set attributes and create tensors of known sizes. Those of torch.nn are known by `torch_constructors`.
    Nothing is
allocated, and nothing of a file is run.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from attrs import field

from ..data import define
from ..errors import ModelError
from ..graph.dtypes import ELEMENT_TYPES
from ..nn.mapping import LAYERS
from ..nn.plan.spec import SEQUENTIAL, ModuleSpec, Plan
from ..nn.torch_nn import TORCH, Refused, Shape, constructed, shape
from .copied import pieces
from .keys import Owned, all_specs


@define(eq=False)
class Constructed:
    """A module after construction.

    Attributes:
        attributes: its attributes.
        tensors: its parameters and buffers, including those of modules that its constructor created.
        modules: the modules inside that its constructor received, by their attribute names.
        learned: the tensors that are parameters.
        placed: whether it is a module of the plan, not created by a constructor.
        followed: whether its constructor could be interpreted to the end.
    """

    attributes: dict[str, Any] = field(factory=dict)
    tensors: dict[str, Shape] = field(factory=dict)
    modules: dict[str, Any] = field(factory=dict)
    learned: list[str] = field(factory=list)
    placed: bool = False
    followed: bool = True


@define(frozen=True)
class _Sized:
    """A tensor of which only the shape is known."""

    shape: Shape
    learned: bool = False

    def __truediv__(self, other: int) -> _Sized:
        return self


def check_construction(plan: Plan, owned: Owned) -> None:
    """Refuse a plan whose modules could not be constructed, or whose tensors would not fit into them.

    Args:
        plan: the plan.
        owned: the tensors of its modules.

    Raises:
        ModelError: a constructor would raise, or a tensor is missing, unexpected or of another shape.
    """
    made: dict[int, Constructed] = {}
    # Children are constructed first.
    for spec in reversed([*all_specs(plan)]):
        _construct(spec, made)
    for spec in all_specs(plan):
        module = made[id(spec)]
        if _is_known(spec) and module.followed:
            _check_modules(spec, module.modules, {name: made[id(child)] for name, child in spec.children.items()})
            _check_tensors(spec, module.tensors, {key: each.shape for key, each in owned.get(id(spec), {}).items()})


def _is_known(spec: ModuleSpec) -> bool:
    """Return whether a class is one of this package or of torch.nn; the tensors of others are unknown."""
    return spec.target.startswith(LAYERS) or spec.target.removeprefix("torch.nn.") in TORCH or spec.target == SEQUENTIAL


def _check_modules(spec: ModuleSpec, found: Mapping[str, Constructed], wanted: Mapping[str, Constructed]) -> None:
    """Refuse a class that accepts other modules than those inside, or stores them under other names."""
    for name in {**wanted, **found}:
        if found.get(name) is not wanted.get(name) and name not in spec.refers:
            raise ModelError(
                f"a {spec.class_name} does not hold the modules that a {spec.target.removeprefix(LAYERS)} takes",
                path=spec.path,
                expected=f"the modules {', '.join(found) or 'none'}",
                found=", ".join(wanted) or "none",
            )


def _check_tensors(spec: ModuleSpec, wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            raise ModelError(
                f"the weights do not fit the layer: {spec.class_name} as {spec.target.removeprefix(LAYERS)}",
                path=f"{spec.path}.{name}",
                expected=f"the shape {wanted[name]}" if name in wanted else "no such tensor",
                found=f"{found[name]}" if name in found else "no such tensor",
            )


def _construct(spec: ModuleSpec, made: dict[int, Constructed]) -> Constructed:
    """Construct the module of a spec, after its children."""
    stack = [spec]
    while stack:
        spec = stack[-1]
        inner = [*spec.children.values()]
        missing = [child for child in inner if id(child) not in made]
        if missing and id(spec) not in made:
            stack += missing
            continue
        stack.pop()
        if id(spec) not in made:
            try:
                made[id(spec)] = _called(spec, made)
                made[id(spec)].placed = True
            except (ArithmeticError, AttributeError, LookupError, Refused, TypeError, ValueError) as error:
                raise ModelError(
                    f"a {spec.class_name} cannot be made a {spec.target.removeprefix(LAYERS)}: {error}",
                    path=spec.path,
                ) from error
    return made[id(spec)]


def _called(spec: ModuleSpec, made: dict[int, Constructed]) -> Constructed:
    numbered = [made[id(child)] for name, child in spec.children.items() if name.isdigit()]
    named: dict[str, Any] = {name: made[id(child)] for name, child in spec.children.items() if not name.isdigit()}
    if spec.graph is not None or not _is_known(spec) or spec.target == SEQUENTIAL:
        return Constructed(modules={name: made[id(child)] for name, child in spec.children.items()})
    refers = {name: made.get(id(other), Constructed()) for name, other in spec.refers.items()}
    given = {**named, **refers, **spec.kwargs}
    if len(given) < len(named) + len(refers) + len(spec.kwargs):
        raise Refused("an argument occurs twice")
    if spec.target.startswith("torch.nn."):
        return _of_torch(spec.target.removeprefix("torch.nn."), (*numbered, *spec.args), given)
    module = Constructed()
    home, _, name = spec.target.removeprefix(LAYERS).partition(".")
    try:
        _Constructor(home, module).run(name, (*numbered, *spec.args), given)
    except NotImplementedError:  # a test ensures that the package has none
        module.followed = False
    return module


def _of_torch(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Constructed:
    given, tensors = constructed(name, args, kwargs)
    learned = [key for key in tensors if not key.startswith(("running_", "num_batches"))]
    return Constructed(given, tensors, learned=learned)


@cache
def _class(home: str, name: str) -> ast.ClassDef | None:
    """Return a class of a file of layers, as a syntax tree."""
    for piece in pieces(f"{LAYERS}{home}.{name}"):
        statement = ast.parse(piece.text).body[0]
        if piece.name == name and isinstance(statement, ast.ClassDef):
            return statement
    return None


_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


def _operated(operation: ast.AST, left: Any, right: Any) -> Any:
    function = _OPERATORS.get(type(operation))
    if function is None:
        raise NotImplementedError(f"the operator {type(operation).__name__}")
    return function(left, right)


class _Constructor:
    """Interprets the constructor of one module, and those that it calls."""

    def __init__(self, home: str, module: Constructed) -> None:
        self._home = home
        self._module = module

    def run(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Interpret the constructor of a class of the file, or of `nn.…`."""
        if name.startswith("nn."):
            self._base(name.removeprefix("nn."), args, kwargs)
            return
        statement = _class(self._home, name)
        if statement is None:
            raise NotImplementedError(f"a base class {name}")
        method = _method(statement, "__init__")
        base = ast.unparse(statement.bases[0])
        if method is None:
            self.run(base, args, kwargs)
            return
        names = _bound(method, args, kwargs)
        self._call(method, {**names, "super": base, "class": statement})

    def _base(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if name == "Sequential":
            self._module.modules |= {str(number): each for number, each in enumerate(args)}
            if kwargs or not all(isinstance(each, Constructed) for each in args):
                raise Refused("nn.Sequential accepts only modules")
        elif name == "Module":
            if args or kwargs:
                raise Refused("nn.Module has no arguments")
        elif name in TORCH:
            made = _of_torch(name, args, kwargs)
            self._module.attributes |= made.attributes
            self._module.tensors |= made.tensors
            self._module.learned += made.learned
        else:
            raise NotImplementedError(f"a base class nn.{name}")

    def _call(self, method: ast.FunctionDef, names: dict[str, Any]) -> Any:
        for statement in method.body:
            if isinstance(statement, ast.Return):
                return self._value(statement.value, names) if statement.value else None
            self._statement(statement, names)
        return None

    # Statements

    def _statement(self, statement: ast.stmt, names: dict[str, Any]) -> None:
        match statement:
            case ast.Expr(value=value):
                self._value(value, names)
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self._value(value, names), names)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value, names), names)
            case ast.If(test=test, body=body, orelse=orelse):
                for inner in body if self._value(test, names) else orelse:
                    self._statement(inner, names)
            case ast.For(target=target, iter=iterated, body=body):
                for item in self._value(iterated, names):
                    self._assign(target, item, names)
                    for inner in body:
                        self._statement(inner, names)
            case ast.Delete(targets=[ast.Attribute(value=owner, attr=name)]):
                self._forget(self._value(owner, names), name)
            case ast.Delete(targets=[ast.Subscript(value=owner, slice=key)]):
                if self._value(owner, names) is not self._module.tensors:
                    raise NotImplementedError(ast.unparse(statement))
                self._forget(self._module, self._value(key, names))
            case ast.Assert(test=test):
                if not self._value(test, names):
                    raise Refused(ast.unparse(test))
            case ast.Raise(exc=ast.Call(args=[message])):
                raise Refused(str(self._value(message, names)))
            case _:
                raise NotImplementedError(ast.unparse(statement))

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        match target:
            case ast.Name(id=name):
                names[name] = value
            case ast.Tuple(elts=targets):
                for inner, item in zip(targets, value, strict=True):
                    self._assign(inner, item, names)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                self._set(name, value)
            case _:
                raise NotImplementedError(ast.unparse(target))

    def _set(self, name: str, value: Any) -> None:
        """Execute `self.name = value`."""
        module = self._module
        module.attributes[name] = value
        if isinstance(value, _Sized) and value.learned:
            module.tensors[name] = value.shape
            module.learned.append(name)
        elif isinstance(value, Constructed):
            # Those passed to the constructor are modules of the plan, with tensors of their own.
            if value.placed:
                module.modules[name] = value
            else:
                module.tensors |= {f"{name}.{key}": extent for key, extent in value.tensors.items()}
        elif value is None:
            module.tensors.pop(name, None)

    @staticmethod
    def _forget(module: Constructed, name: str) -> None:
        module.attributes.pop(name, None)
        if name not in module.tensors:
            raise AttributeError(f"unknown attribute {name}")
        del module.tensors[name]

    # Expressions

    def _value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names[name]
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return self._attribute(name, names)
            case ast.Attribute(value=owner, attr=name):
                return _attribute_of(self._value(owner, names), name)
            case ast.Tuple() | ast.List():
                return tuple(self._spread(node.elts, names))
            case ast.BinOp(left=left, op=operation, right=right):
                return _operated(operation, self._value(left, names), self._value(right, names))
            case ast.UnaryOp(op=ast.USub(), operand=value):
                return -self._value(value, names)
            case ast.UnaryOp(op=ast.Not(), operand=value):
                return not self._value(value, names)
            case ast.Compare(left=left, ops=[operation], comparators=[right]):
                return _operated(operation, self._value(left, names), self._value(right, names))
            case ast.BoolOp(op=operation, values=values):
                found = None
                for each in values:
                    found = self._value(each, names)
                    if bool(found) is isinstance(operation, ast.Or):
                        break
                return found
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._value(body if self._value(test, names) else orelse, names)
            case ast.JoinedStr(values=parts):
                return "".join(str(self._value(part, names)) for part in parts)
            case ast.FormattedValue(value=value):
                return self._value(value, names)
            case ast.Subscript(value=value, slice=ast.Slice(lower=None, upper=ast.expr() as upper, step=None)):
                return self._value(value, names)[: self._value(upper, names)]
            case ast.Subscript(value=value, slice=key):
                return self._value(value, names)[self._value(key, names)]
            case ast.Call():
                return self._calls(node, names)
        if isinstance(node, ast.Dict) and not node.keys:
            return {}
        raise NotImplementedError(ast.unparse(node))

    def _spread(self, nodes: list[ast.expr], names: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                found += self._value(node.value, names)
            else:
                found.append(self._value(node, names))
        return found

    def _attribute(self, name: str, names: dict[str, Any]) -> Any:
        if name in self._module.attributes:
            return self._module.attributes[name]
        if name == "_parameters":
            return self._module.tensors
        statement = names.get("class")
        getter = _method(statement, name) if isinstance(statement, ast.ClassDef) else None
        if getter is not None and any(ast.unparse(each) == "property" for each in getter.decorator_list):
            return self._call(getter, dict(names))
        raise AttributeError(f"unknown attribute {name}")

    def _calls(self, node: ast.Call, names: dict[str, Any]) -> Any:
        called = ast.unparse(node.func)
        if called == "super":
            raise NotImplementedError(ast.unparse(node))
        if called == "super().__init__":
            args, kwargs = self._arguments(node, names)
            self.run(names["super"], args, kwargs)
            return None
        if called in ("nn.init.uniform_", "isinstance"):
            for each in node.args[:1] if called == "isinstance" else node.args:
                found = self._value(each, names)
            return isinstance(found, _Sized)
        args, kwargs = self._arguments(node, names)
        if called in ("torch.zeros", "torch.ones", "torch.empty"):
            return _Sized(shape(*args))
        if called == "torch.eye":
            return _Sized(shape(*args, *args))
        if called == "nn.Parameter":
            return _Sized(args[0].shape, learned=True)
        if called == "self.parameters":
            return tuple(_Sized(self._module.tensors[name], True) for name in self._module.learned)
        if called in ("self.register_buffer", "self.register_parameter"):
            return self._register(self._module, called, *args)
        if called.startswith("nn.") and called.removeprefix("nn.") in TORCH:
            return _of_torch(called.removeprefix("nn."), args, kwargs)
        if called in _FUNCTIONS:
            return _FUNCTIONS[called](*args)
        return self._method_call(node, names, args, kwargs)

    def _method_call(
        self, node: ast.Call, names: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        match node.func:
            case ast.Attribute(value=ast.Name(id="self"), attr="add_module"):
                self._set(*args)
                return None
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                method = _method(names["class"], name)
                if method is None:
                    raise NotImplementedError(ast.unparse(node))
                return self._call(method, {**_bound(method, args, kwargs), **{k: names[k] for k in ("super", "class")}})
            case ast.Attribute(value=owner, attr="detach"):
                return _Sized(self._value(owner, names).shape)
            case ast.Attribute(value=owner, attr="items"):
                found = self._value(owner, names)
                sized = found is self._module.tensors
                return tuple((key, _Sized(each, True) if sized else each) for key, each in found.items())
            case ast.Attribute(value=owner, attr="register_buffer"):
                return self._register(self._value(owner, names), "register_buffer", *args)
        raise NotImplementedError(ast.unparse(node))

    @staticmethod
    def _register(module: Constructed, called: str, name: str, value: Any) -> None:
        module.attributes[name] = value
        if isinstance(value, _Sized):
            module.tensors[name] = value.shape
            if called.endswith("parameter"):
                module.learned.append(name)

    def _arguments(self, node: ast.Call, names: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        kwargs: dict[str, Any] = {}
        for each in node.keywords:
            kwargs |= {each.arg: self._value(each.value, names)} if each.arg else self._value(each.value, names)
        args = list(node.args)
        if ast.unparse(node.func) == "getattr" and ast.unparse(args[0]) == "torch":
            name = self._value(args[1], names)
            if name not in ELEMENT_TYPES:
                raise AttributeError(f"torch has no element type {name!r:.40}")
            return ((name,), {})
        return tuple(self._spread(args, names)), kwargs


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "getattr": lambda name: name,
    "len": len,
    "list": tuple,
    "zip": lambda *each: tuple(zip(*each)),
    "tuple": tuple,
    "range": range,
    "float": float,
    "int": int,
    "max": max,
    "min": min,
}


def _attribute_of(owner: Any, name: str) -> Any:
    if isinstance(owner, Constructed):
        if name in owner.tensors:
            return _Sized(owner.tensors[name], name in owner.learned)
        if name in owner.attributes:
            return owner.attributes[name]
    elif isinstance(owner, _Sized) and name == "shape":
        return owner.shape
    raise AttributeError(f"unknown attribute {name}")


def _method(statement: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    found = (each for each in statement.body if isinstance(each, ast.FunctionDef) and each.name == name)
    return next(found, None)


def _bound(method: ast.FunctionDef, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a method by name; defaults that are literals are known."""
    declared = method.args
    plain = [each.arg for each in (*declared.posonlyargs, *declared.args)][1:]
    only = [each.arg for each in declared.kwonlyargs]
    names: dict[str, Any] = {}
    for name, default in zip(plain[len(plain) - len(declared.defaults) :], declared.defaults):
        names[name] = _default(default)
    for name, value in zip(only, declared.kw_defaults):
        if value is not None:
            names[name] = _default(value)
    given = dict(zip(plain, args))
    if len(args) > len(plain) and declared.vararg is None:
        raise Refused(f"{len(plain)} arguments expected, not {len(args)}")
    if declared.vararg is not None:
        names[declared.vararg.arg] = args[len(plain) :]
    extra: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in given:
            raise Refused(f"the argument {name} occurs twice")
        if name in plain or name in only:
            given[name] = value
        elif declared.kwarg is not None:
            extra[name] = value
        else:
            raise Refused(f"unknown argument {name}")
    if declared.kwarg is not None:
        names[declared.kwarg.arg] = extra
    names |= given
    missing = [name for name in (*plain, *only) if name not in names]
    if missing:
        raise Refused(f"the argument {missing[0]} is missing")
    return names


def _default(node: ast.expr) -> Any:
    """Return the value of a default: a literal, or an expression of numbers."""
    if isinstance(node, ast.BinOp):
        return _operated(node.op, _default(node.left), _default(node.right))
    return ast.literal_eval(node)
