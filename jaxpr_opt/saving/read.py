"""A program from a file: a function that JAX traces."""

from __future__ import annotations

import inspect
import json
import keyword
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax import lax

from jaxpr_opt.bridge import compat, compat_saving, compat_types
from jaxpr_opt.errors import TargetError
from jaxpr_opt.frames import Frame, first_line
from jaxpr_opt.ir.graph import UNDEFINED
from jaxpr_opt.saving import values
from jaxpr_opt.saving.write import KIND, VERSION

Env = dict[int, Any]
_BROKEN = (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError)


@dataclass(eq=False)
class Saved:
    """A saved program: a function of arrays."""

    data: dict[str, Any]
    root: Path
    """What the files of its source are relative to."""
    unknown: dict[str, None] = field(default_factory=dict)
    """Primitives that JAX does not have here, or has otherwise."""

    def __post_init__(self) -> None:
        self.__name__ = str(self.data["name"])
        self.types = [values.read_type(each) for each in self.data["types"]]
        self.places = list(map(self._frame, self.data["places"]))
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = _distinct(map(str, self.data["names"]))
        self.__signature__ = inspect.Signature([inspect.Parameter(each, kind) for each in names])

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The types of its arguments."""
        avals = [self.types[each] for _, each in self.data["body"]["params"]]
        return tuple(jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals)

    @property
    def begins(self) -> Frame | None:
        """Where its function begins."""
        return None if self.data["begins"] is None else self._frame(self.data["begins"])

    def _frame(self, place: Any) -> Frame:
        path, line, function = place
        return str(self.root / str(path)), int(line), str(function)

    def __call__(self, *args: Any) -> list[Any]:
        return self._region(self.data["body"], args, {})

    # -- ops -------------------------------------------------------------------------------------

    def _region(self, region: Any, args: Sequence[Any], env: Env) -> list[Any]:
        """What a region yields, which sees the values in `env`."""
        env = dict(env)
        env.update(zip((number for number, _ in region["params"]), args, strict=True))
        for op in region["ops"]:
            frame = self.places[op["at"]] if "at" in op else self.begins
            operands = [self._operand(each, env) for each in op["in"]]
            with compat_saving.at_place(frame, op.get("transposes", 0)):
                made = self._op(op, operands, env)
            env.update(zip((number for number, _ in op["out"]), made, strict=True))
        return [self._operand(each, env) for each in region["outputs"]]

    def _operand(self, written: Any, env: Env) -> Any:
        return env[written] if isinstance(written, int) else values.read(written[1], self._jaxpr)

    def _closure(self, region: Any, env: Env) -> Callable[..., list[Any]]:
        return lambda *args: self._region(region, args, env)

    def _op(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        made: Sequence[Any] = getattr(self, _RULES[op["op"]])(op, operands, env)
        return made

    def _scan(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        n, body = op["carries"], self._closure(op["regions"][0], env)

        def step(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            made = body(*carry, *xs)
            return _typed(made[:n], carry), made[n:]

        carry, stacked = lax.scan(
            step, operands[:n], operands[n:], **values.read(op["params"], self._jaxpr)
        )
        return [*carry, *stacked]

    def _while(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        predicate, body = (self._closure(each, env) for each in op["regions"])
        made: Sequence[Any] = lax.while_loop(
            lambda carry: predicate(*carry)[0], lambda carry: _typed(body(*carry), carry), operands
        )
        return made

    def _cond(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        branches = [self._closure(each, env) for each in op["regions"]]
        typed = [self._as_results(op, each) for each in branches]
        if len(typed) == 2:
            return list(lax.cond(operands[0], typed[1], typed[0]))
        return list(lax.switch(operands[0], typed))

    def _as_results(self, op: Any, branch: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        avals = [self.types[each] for _, each in op["out"]]
        return lambda: [
            x if compat_types.aval_of(x).weak_type == a.weak_type else compat_types.weaken(x, a)
            for x, a in zip(branch(), avals, strict=True)
        ]

    def _remat(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        del operands
        region, numbers = op["regions"][0], op["captures"]
        given = [env[each] for each in numbers]  # the body is a jaxpr, which sees nothing outside
        jaxpr = compat.trace(
            lambda *args: self._region(region, (), dict(zip(numbers, args, strict=True))),
            list(map(compat_types.aval_of, given)),
        )
        params = {**values.read(op["params"], self._jaxpr), "jaxpr": compat.opened(jaxpr)}
        return compat.bind(compat_saving.checkpoint(), given, params)

    def _call(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        return self._region(op["regions"][0], operands, env)

    def _undefined(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        del operands, env
        return [compat_types.undefined(self.types[each]) for _, each in op["out"]]

    def _opaque(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        del env
        name, effects = str(op["name"]), bool(op["effects"])
        avals = tuple(self.types[each] for _, each in op["out"])
        made: Sequence[Any] = compat_saving.opaque(name, effects).bind(*operands, avals=avals)
        return made

    def _first_order(self, op: Any, operands: list[Any], env: Env) -> Sequence[Any]:
        """Bound as it was; where JAX has no such primitive, or another, only its types count."""
        primitive = compat_saving.primitives().get(op["primitive"])
        try:
            assert primitive is not None
            params = values.read(op["params"], self._jaxpr)
            made = compat.bind(primitive, operands, params)
            types = [self.types[each] for _, each in op["out"]]
            assert [(x.shape, x.dtype) for x in made] == [(a.shape, a.dtype) for a in types]
        except Exception:  # noqa: BLE001 -- other versions of JAX have other parameters
            self.unknown[str(op["primitive"])] = None
            return self._opaque({**op, "name": op["primitive"], "effects": False}, operands, env)
        return made

    def _jaxpr(self, region: Any) -> Any:
        avals = [self.types[each] for _, each in region["params"]]
        return compat.trace(self._closure(region, {}), avals)


def _typed(made: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """Values with the weak types of others."""
    avals = map(compat_types.aval_of, like)
    return [
        x if compat_types.aval_of(x).weak_type == a.weak_type else compat_types.weaken(x, a)
        for x, a in zip(made, avals, strict=True)
    ]


_RULES = {
    "scan": "_scan",
    "while": "_while",
    "cond": "_cond",
    "remat": "_remat",
    "jit": "_call",
    UNDEFINED: "_undefined",
    "opaque": "_opaque",
    "first-order": "_first_order",
}
"""What reads an op of each kind."""


def _distinct(names: Any) -> list[str]:
    """Names of arguments, each another and none a word of Python's."""
    made: list[str] = []
    for n, name in enumerate(names):
        usable = name.isidentifier() and not keyword.iskeyword(name) and name not in made
        made.append(name if usable else f"argument_{n}")
    return made


# -- files ---------------------------------------------------------------------------------------


def load(path: Path, root: Path | None = None, *, warn: bool = True) -> Saved:
    """The program in a file, whose source is in `root`, or in the current folder.

    `warn`: of what JAX does not know here.

    Raises:
      TargetError: it has none, or a damaged one.
    """
    data = _data(path)
    try:
        saved = Saved(data, root or Path.cwd())
        jax.eval_shape(saved, *saved.arguments)
    except _BROKEN as error:
        raise TargetError(f"{path} is damaged: {first_line(error)}") from error
    if saved.unknown and warn:
        names = ", ".join(sorted(saved.unknown))
        message = f"JAX {jax.__version__} does not have {names}: only their types are known"
        warnings.warn(f"{path}: {message}", stacklevel=2)
    return saved


def _data(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise TargetError(f"{path} is not a saved program: it is not JSON") from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise TargetError(f"{path} is not a saved program: `jaxpr-opt run --save DIR` writes those")
    if data.get("version") != VERSION:
        raise TargetError(f"{path} was written by another version of jaxpr-opt: save it again")
    return data
