"""Targets of the command line: a function and the types of its arguments.

::

    package.module:function   file.py:Class.method    a function
    programs/step.json                                one that was saved, with its arguments
    f32[8,128]   bf16[]   i32[4]   key[2]             an array, by dtype and shape: no data
    1.5   3   True   None                             a Python value, as in a call from Python

dtypes are named as JAX prints them (`f32`, `bf16`, `i8`, `u32`, `c64`, `bool`, `key`) or in full.
Arguments that are pytrees come from a function that returns them.

Everything wrong with what the user wrote raises `TargetError`: one sentence, and what to do next.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from jaxpr_opt.errors import TargetError, indefinite, nearest, suspended
from jaxpr_opt.frames import blame
from jaxpr_opt.saving.read import Saved, load

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

DTYPE = re.compile(r"(?P<kind>bf|f|i|u|c)(?P<rest>\d+.*)")
ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<shape>\s*(\d+\s*(,\s*\d+\s*)*)?)\]")
KINDS = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}


# -- functions -----------------------------------------------------------------------------------


def resolve(target: str) -> Callable[..., Any]:
    """The function `target` names."""
    if is_saved(target):
        return saved(target)
    place, colon, path = target.rpartition(":")
    if not colon or not place or not path:
        raise TargetError(f"{target!r} is not a target: write module:function or file.py:function")
    found: Any = load_module(place)
    for index, name in enumerate(names := path.split(".")):
        if not hasattr(found, name):
            owner = ":".join([place, ".".join(names[:index])]).rstrip(":")
            raise TargetError(f"{owner} has no attribute {name!r}{_nearest(name, found)}")
        found = getattr(found, name)
    if not callable(found):
        raise TargetError(f"{target} is not a function, it is of type {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def is_saved(target: str) -> bool:
    """Whether a target is the file of a saved program."""
    return target.endswith(".json")


def saved(target: str) -> Saved:
    """The program in a file."""
    return load(Path(target))


def _nearest(name: str, owner: Any) -> str:
    public = (n for n in dir(owner) if not n.startswith("_"))
    return nearest(name, public, otherwise="")


def load_module(place: str) -> ModuleType:
    """Import a module, or a file as one; `sys.path` gets the current and the file's directory."""
    is_file = place.endswith(".py")
    path = Path(place).resolve()
    if is_file and not path.is_file():
        raise TargetError(f"there is no file {place}")
    if not is_file and not all(name.isidentifier() for name in place.split(".")):
        raise TargetError(f"{place!r} is neither a module, as a.b, nor a file, as a/b.py")
    for directory in (Path.cwd(), path.parent) if is_file else (Path.cwd(),):
        if str(directory) not in sys.path:
            sys.path.insert(0, str(directory))
    try:
        return _load_file(path) if is_file else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if not is_file and error.name and f"{place}.".startswith(f"{error.name}."):
            raise TargetError(f"there is no module {error.name!r}, here or installed") from error
        raise TargetError(f"importing {place} failed: {blame(error)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"importing {place} failed: {blame(error)}") from error


def _load_file(path: Path) -> ModuleType:
    """The file as a module named like it; under its path where that name is taken."""
    known = sys.modules.get(path.stem)
    for module in (known, sys.modules.get(str(path))):
        if module is not None and getattr(module, "__file__", None) == str(path):
            return module
    name = path.stem if known is None and importlib.util.find_spec(path.stem) is None else str(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


# -- arguments -----------------------------------------------------------------------------------


def parse_arguments(specs: Sequence[str]) -> tuple[Any, ...]:
    """The arguments `specs` describe, one each."""
    return tuple(map(parse_argument, specs))


def parse_argument(spec: str) -> Any:
    """`f32[8,128]` as a `jax.ShapeDtypeStruct`, `1.5` as itself."""
    match = ARRAY.fullmatch(spec.strip())
    if match is not None:
        shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
        dtype = _dtype(match["dtype"], spec)
        return jax.ShapeDtypeStruct(shape, dtype)
    try:
        value = ast.literal_eval(spec.strip())
    except (ValueError, SyntaxError):
        value = spec
    if value is None or isinstance(value, bool | int | float | complex):
        return value
    raise TargetError(
        f"cannot read the argument {spec!r}: write a dtype and a shape, as f32[8,128] or i32[],"
        " or a Python number; for anything else name a function, with --args-from or in `args`"
    )


def _dtype(name: str, spec: str) -> Any:
    if name == "key":
        return jax.eval_shape(jax.random.key, 0).dtype
    short = DTYPE.fullmatch(name)
    try:
        dtype = jnp.dtype(KINDS[short["kind"]] + short["rest"] if short else name)
        if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.number, jnp.bool_)):
            raise TypeError(f"{dtype} is known to numpy only")
    except TypeError:
        raise TargetError(
            f"unknown dtype {name!r} in {spec!r}: there are f16, bf16, f32, f64, i8 to i64,"
            " u8 to u64, c64, c128, bool and key"
        ) from None
    _check_width(dtype, spec)
    return dtype


def _check_width(dtype: Any, spec: str) -> None:
    """64-bit types are not switched on here: that would make it another program."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TargetError(f"{spec} needs 64-bit types, which are off: set JAX_ENABLE_X64=1")


def load_arguments(reference: str) -> Arguments:
    """The value that the function `reference` names returns: a tuple of arguments, or `(args,
    kwargs)`.

    Arrays in it become types; see `arguments_of`.
    """
    return arguments_of(resolve(reference), reference)


def arguments_of(make: Callable[..., Any], name: str, *given: Any) -> Arguments:
    """The arguments that `make(*given)` returns, their arrays as `jax.ShapeDtypeStruct` objects.

    It is traced first, so that arrays it makes are never there; where it needs their values, it
    runs.
    """
    try:
        made = _abstractly(make, given)
    except (Exception, SystemExit) as error:
        raise TargetError(f"{name} raised {blame(error)}") from error
    if not isinstance(made, tuple):
        kind = indefinite(type(made).__name__)
        raise TargetError(f"{name} returned {kind}: expected a tuple of arguments")
    is_pair = len(made) == 2 and isinstance(made[0], tuple) and isinstance(made[1], dict)
    args, kwargs = made if is_pair and all(isinstance(k, str) for k in made[1]) else (made, {})
    for leaf in jax.tree.leaves((args, kwargs)):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            _check_width(leaf.dtype, f"a {leaf.dtype} argument of {name}")
    return args, kwargs


def _abstractly(make: Callable[..., Any], given: Sequence[Any]) -> Any:
    """The value that `make` returns, with types for arrays."""
    kept: list[Any] = []

    def arrays() -> list[Any]:
        leaves, tree = jax.tree.flatten(make(*given))
        traced = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
        kept[:] = leaves, tree, traced
        return [leaf for leaf, is_traced in zip(leaves, traced, strict=True) if is_traced]

    try:
        made = iter(jax.eval_shape(arrays))
    except jax.errors.JAXTypeError:  # it looks at values
        return types(make(*given))
    leaves, tree, traced = kept
    kept.clear()  # a tracer must not outlive its trace
    filled = [next(made) if is_traced else x for x, is_traced in zip(leaves, traced, strict=True)]
    return types(jax.tree.unflatten(tree, filled))


def types(tree: Any) -> Any:
    """A pytree with the types of its arrays in their place."""
    return jax.tree.map(_type, tree)


def _type(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct) or not hasattr(leaf, "shape"):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    return jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype,
        sharding=sharding if isinstance(sharding, jax.sharding.NamedSharding) else None,
        weak_type=getattr(leaf, "weak_type", False),
    )


def check_call(
    target: str,
    function: Callable[..., Any],
    arguments: Arguments,
    hint: str = "give arguments with --args or --args-from",
) -> None:
    """Raise `TargetError` if the function cannot be called with these arguments, or if a call would
    return no arrays.

    The message says what it takes, and `hint` if arguments are missing.
    """
    if kind := suspended(function):
        raise TargetError(f"{target} is {kind}: JAX traces functions that return arrays")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(*arguments[0], **arguments[1])
    except TypeError as error:
        next_step = f"; {hint}" if str(error).startswith("missing") else ""
        raise TargetError(f"{target} takes {_written(signature)}: {error}{next_step}") from error


def _written(signature: inspect.Signature) -> str:
    """A signature as in a definition, without annotations and default values."""
    bare = [
        each.replace(
            annotation=each.empty, default=each.empty if each.default is each.empty else _Elided()
        )
        for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


class _Elided:
    """A default value that is there."""

    def __repr__(self) -> str:
        return "..."
