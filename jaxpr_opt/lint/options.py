"""What users can set, in `pyproject.toml` and in `lint_target`, and what they may write there.

A setting is a field; its name with dashes is the key in `pyproject.toml`.  The defaults are such
that a program that is well written stays silent.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from jaxpr_opt.errors import nearest
from jaxpr_opt.insight.powers import parse_limit
from jaxpr_opt.sizes import parse_bytes

Mode = Literal["as-is", "gradient", "train-step", "auto"]
"""What is looked at: the function; its gradient; the function, as one that returns the next version
of what it is given, which its caller gives up; of a loss its gradient, else the function.
"""
MODES: tuple[Mode, ...] = get_args(Mode)


class Limit(NamedTuple):
    """A budget: above `warn` it is a note, above `fail` an error."""

    warn: float = math.inf
    fail: float = math.inf


class Scale(NamedTuple):
    """A number that arguments grow with, and the values it is looked at, in increasing order."""

    name: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The numbers rules go by."""

    min_bytes: int = parse_bytes("1 MiB")
    """Nothing smaller is reported."""
    min_share: float = 0.1
    """Nor what is smaller than this share of the program's inputs."""
    max_residual_bytes: Limit | None = None
    """Of what the gradient keeps."""
    max_residual_ratio: Limit | None = None
    """The same, in units of the program's inputs."""
    max_peak_bytes: Limit | None = None
    """Of the most that is live at one moment, estimated."""
    memory: int | None = None
    """Of the device that the program is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """How a target is to be looked at."""

    mode: Mode = "auto"
    argnums: int | tuple[int, ...] = 0
    """In mode `gradient`: the positions of the arguments to differentiate by."""
    ignore: tuple[str, ...] = ()
    """Rules that do not look at it."""
    scale: Scale | None = None
    growth: str = ""
    """The fastest growth with `scale` that is fine, as `O(T)`."""


def parse(given: Mapping[str, Any], *known: type, also: Iterable[str] = ()) -> dict[str, Any]:
    """Settings as users write them, as the values of fields of the dataclasses `known`.

    Those of `also` are left as they are.

    Raises:
      ValueError: one is unknown or makes no sense.
    """
    fields = [field.name for each in known for field in dataclasses.fields(each)]
    names = {name.replace("_", "-"): name for name in (*fields, *also)}
    parsed = {}
    for written, value in given.items():
        key = written.replace("_", "-")
        if key not in names:
            raise ValueError(f"unknown setting {written!r}{nearest(key, names)}")
        parsed[names[key]] = value if names[key] in also else _PARSERS[names[key]](written, value)
    return parsed


# -- what may be written -------------------------------------------------------------------------

_Parser = Callable[[str, Any], Any]


def _bytes(name: str, value: Any) -> int:
    return parse_bytes(value, name)


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}: expected a number that is not negative")
    return float(value)


def _limit(read: _Parser) -> _Parser:
    """A number is the limit above which it fails; a table has two."""

    def limit(name: str, value: Any) -> Limit:
        if not isinstance(value, Mapping):
            return Limit(fail=read(name, value))
        if not value or not value.keys() <= set(Limit._fields):
            raise ValueError(f"{name} has {', '.join(value) or 'nothing'}: expected warn, fail")
        return Limit(**{key: read(f"{name}.{key}", each) for key, each in value.items()})

    return limit


def _mode(name: str, value: Any) -> Mode:
    if value not in MODES:
        raise ValueError(f"{name} is {value!r}: expected one of {', '.join(MODES)}")
    return value  # type: ignore[no-any-return]


def _argnums(name: str, value: Any) -> int | tuple[int, ...]:
    numbers = [value] if isinstance(value, int) else value
    if (
        not isinstance(numbers, list | tuple)
        or not numbers
        or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
        or len(set(numbers)) < len(numbers)
    ):
        raise ValueError(f"{name} is {value!r}: expected argument positions, as 0 or [0, 2]")
    return value if isinstance(value, int) else tuple(value)


def strings(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} is {value!r}: expected a list of strings")
    return tuple(value)


def _scale(name: str, value: Any) -> Scale:
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+(?:\s*,\s*\d+)*)\s*", str(value))
    sizes = tuple(sorted({int(size) for size in match[2].split(",")})) if match else ()
    if match is None or len(sizes) < 2 or not all(sizes):
        raise ValueError(
            f"{name} is {value!r}: expected the name of a size and some values, as T=64,128,256"
        )
    return Scale(match[1], sizes)


def _growth(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}: expected a power of the size, as 'O(T)'")
    return parse_limit(value).text


_PARSERS: dict[str, _Parser] = {
    "min_bytes": _bytes,
    "min_share": _number,
    "max_residual_bytes": _limit(_bytes),
    "max_residual_ratio": _limit(_number),
    "max_peak_bytes": _limit(_bytes),
    "memory": _bytes,
    "mode": _mode,
    "argnums": _argnums,
    "ignore": strings,
    "scale": _scale,
    "growth": _growth,
}
