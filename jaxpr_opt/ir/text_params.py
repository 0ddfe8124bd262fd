"""How the types and parameters of one op are written.

A parameter is left out where the result's type already says it (`shape`, `new_dtype`), where it has
the value JAX gives it when nobody asks for another, or where it is plumbing (thunks, tree
definitions, inner jaxprs).  An absent flag is off.  The text does not depend on the JAX version.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpr_opt.bridge import compat
from jaxpr_opt.bridge.parameters import callee_of
from jaxpr_opt.ir.graph import Call, Op, Remat

PLUMBING = frozenset({
    "body_jaxpr", "body_nconsts", "branches", "bwd", "call_jaxpr", "closed", "computation",
    "cond_jaxpr", "cond_nconsts", "ctx_mesh", "ft_in", "ft_out", "fwd_jaxpr_thunk", "in_tree",
    "index_dtype", "jaxpr", "jaxprs", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "linear",
    "np_printoptions", "num_carry", "num_consts", "out_tree", "out_trees", "result_avals",
    "update_consts", "update_jaxpr",
})  # fmt: skip
"""Never worth reading."""

SAID_BY_THE_TYPE = {
    "broadcast_in_dim": {"shape"},
    "convert_element_type": {"new_dtype", "weak_type"},
    "conv_general_dilated": {"preferred_element_type"},
    "dot_general": {"preferred_element_type"},
    "dynamic_slice": {"slice_sizes"},
    "iota": {"dtype", "shape"},
    "ragged_dot_general": {"preferred_element_type"},
    "random_bits": {"shape", "bit_width"},
    "reshape": {"new_sizes"},
    "rng_bit_generator": {"shape", "dtype"},
    "split": {"sizes"},
    "squeeze": {"dimensions"},
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "": {
        "algorithm": "rng_default",
        "batch_group_count": 1,
        "feature_group_count": 1,
        "is_stable": True,
    },
    "debug_print": {"has_placeholders": True},
    "iota": {"dimension": 0},
    "remat": {"prevent_cse": True},
    "scan": {"unroll": 1},
    "sort": {"num_keys": 1},
}
"""Values that are left out, per primitive; "" is any."""

ALL_ONES = ("base_dilation", "lhs_dilation", "rhs_dilation", "window_dilation", "window_strides")
"""Left out when every element is 1, as `padding` is when every element is 0."""


def parameters(op: Op) -> str:
    """The bracketed parameters of an op, or nothing: `[8, reverse]`, `[axes=(0,)]`."""
    params = dict(op.params)
    hidden = PLUMBING | SAID_BY_THE_TYPE.get(op.name, set())
    write = _SPECIAL.get("call" if isinstance(op, Call) else op.name)
    items = write(op, params) if write is not None else []
    defaults = {**DEFAULTS[""], **DEFAULTS.get("remat" if isinstance(op, Remat) else op.name, {})}
    for key, value in _windows(params).items():
        shown = None if key in hidden else value_text(value)
        if shown is None or (key in defaults and shown == value_text(defaults[key])):
            continue
        items.append(key.lstrip("_") if shown == "True" else f"{key}={shown}")
    if op.alone:
        items.append("one_function" if op.regions else "apart")
    return f"[{', '.join(items)}]" if items else ""


def value_text(value: Any) -> str | None:
    """One parameter's value; None if it says nothing: None, False, an empty string or tuple."""
    if value is None or value is False or (isinstance(value, str | Sequence | dict) and not value):
        return None
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, bool | int | float | str | np.generic):
        return str(value)
    if isinstance(value, np.dtype):
        return value.name
    if hasattr(value, "tag"):  # an implementation of random numbers
        return str(value.name)
    if hasattr(value, "_fields"):
        fields = ((name, value_text(getattr(value, name))) for name in value._fields)
        return f"({', '.join(f'{name}={text}' for name, text in fields if text is not None)})"
    if isinstance(value, tuple | list):
        texts = [str(value_text(each)) for each in value]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
    return _object_text(value)


def _object_text(value: Any) -> str:
    """A callback by its function, a policy by its name, others by their repr or class."""
    value = getattr(value, "callback_func", value)
    if hasattr(value, "__name__"):
        return str(value.__name__)
    text = str(value)
    if len(text) > 60 or " at 0x" in text or hasattr(value, "__dataclass_fields__"):
        flags = [
            name
            for name in getattr(value, "__dataclass_fields__", ())
            if getattr(value, name) is True
        ]
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(value).__name__).lower()
        return snake + (f"({', '.join(flags)})" if flags else "")
    return text


def _windows(params: dict[str, Any]) -> dict[str, Any]:
    """`params` without strides and dilations of one and paddings of zero."""
    plain = {key for key in ALL_ONES if key in params and all(n == 1 for n in params[key] or ())}
    padding = params.get("padding")
    if isinstance(padding, tuple | list) and not any(n for pair in padding for n in pair):
        plain.add("padding")
    return {key: value for key, value in params.items() if key not in plain}


# Primitives whose parameters read better another way; each removes from `params` what it has told.


def _scan(_: Op, params: dict[str, Any]) -> list[str]:
    return [str(params.pop("length"))]


def _dot_general(op: Op, params: dict[str, Any]) -> list[str]:
    """Nothing for a product as `@` makes it, else `contract=1x0, batch=0x0`."""
    (contract, batch), lhs = params.pop("dimension_numbers"), op.operands[0]
    plain = (((len(lhs.shape) - 1,), (0,)), ((), ()))
    contract, batch = tuple(map(tuple, contract)), tuple(map(tuple, batch))
    if (contract, batch) == plain:
        return []
    items = [f"contract={_pairs(contract)}"]
    return [*items, f"batch={_pairs(batch)}"] if batch[0] else items


def _pairs(dims: Sequence[Sequence[int]]) -> str:
    return "x".join(".".join(map(str, side)) for side in dims)


def _slice(op: Op, params: dict[str, Any]) -> list[str]:
    """As it is written in Python: `slice[0:3, :, ::2]`."""
    starts, limits = params.pop("start_indices"), params.pop("limit_indices")
    strides = params.pop("strides") or (1,) * len(starts)
    shape = op.operands[0].shape
    return [
        ("" if start == 0 else str(start))
        + ":"
        + ("" if limit == size else str(limit))
        + ("" if stride == 1 else f":{stride}")
        for start, limit, stride, size in zip(starts, limits, strides, shape, strict=True)
    ]


def _broadcast_in_dim(op: Op, params: dict[str, Any]) -> list[str]:
    """Nothing where it is numpy's rule: the operand's dimensions are the last of the result."""
    dims, rank = tuple(params.pop("broadcast_dimensions")), len(op.result.shape)
    return [] if dims == tuple(range(rank - len(dims), rank)) else [f"dims={value_text(dims)}"]


def _transpose(_: Op, params: dict[str, Any]) -> list[str]:
    permutation = tuple(params.pop("permutation"))
    return (
        []
        if permutation == tuple(range(len(permutation)))[::-1]
        else [", ".join(map(str, permutation))]
    )


def _conv(_: Op, params: dict[str, Any]) -> list[str]:
    numbers = params.pop("dimension_numbers")
    specs = [numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec]
    if all(tuple(spec) == tuple(range(len(spec))) for spec in specs):
        return []
    return ["dims=" + ",".join("".join(map(str, spec)) for spec in specs)]


def _gather(_: Op, params: dict[str, Any]) -> list[str]:
    """The dimension numbers that are not empty, by their own names."""
    numbers = params.pop("dimension_numbers")
    texts = ((name, value_text(getattr(numbers, name))) for name in _fields(numbers))
    return [f"{name}={text}" for name, text in texts if text is not None]


def _fields(value: Any) -> Sequence[str]:
    return tuple(getattr(value, "_fields", ())) or tuple(getattr(value, "__dataclass_fields__", ()))


def _custom_call(op: Op, _: dict[str, Any]) -> list[str]:
    info = compat.debug_info(callee_of(op))
    return [f"name={info.func_name}"] if info is not None and info.func_name else []


def _pallas_call(_: Op, params: dict[str, Any]) -> list[str]:
    info = params.get("name_and_src_info", params.get("name"))
    items = [f"name={getattr(info, 'name', info)}"]
    params.clear()
    return items


def _call(_: Op, params: dict[str, Any]) -> list[str]:
    """Of a `jit` or `shard_map` that was kept, what made it worth keeping."""
    unspecified = "UnspecifiedValue"
    items = [f"name={params.pop('name')}"] if params.get("name") else []
    for key in ("in_shardings", "out_shardings", "in_layouts", "out_layouts"):
        values = params.pop(key, ())
        if any(v is not None and str(v) != unspecified for v in values):
            shown = ", ".join("_" if v is None or str(v) == unspecified else str(v) for v in values)
            items.append(f"{key}=({shown})")
    donated = [str(i) for i, given in enumerate(params.pop("donated_invars", ())) if given]
    if donated:
        items.append(f"donated=({', '.join(donated)})")
    mesh = params.pop("mesh", None)
    if mesh is not None:
        sizes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
        items.append(f"mesh=({', '.join(f'{name}:{size}' for name, size in sizes)})")
    options = dict(params.pop("compiler_options_kvs", ()))
    items += [f"{key}={value}" for key, value in options.items()]
    inline = params.pop("inline", False)
    if not isinstance(inline, bool) and inline.value != "auto":
        items.append(f"inline={inline.value}")
    for key in ("check_vma", "newly_manual_axes", "manual_axes", "auto"):
        params.pop(key, None)
    return items


_SPECIAL: dict[str, Callable[[Op, dict[str, Any]], list[str]]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "call": _call,
    "conv_general_dilated": _conv,
    "custom_jvp_call": _custom_call,
    "custom_vjp_call": _custom_call,
    "dot_general": _dot_general,
    "gather": _gather,
    "pallas_call": _pallas_call,
    "scan": _scan,
    "slice": _slice,
    "transpose": _transpose,
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub", "scatter-mul"), _gather),
    **dict.fromkeys(("scatter-min", "scatter-max"), _gather),
}
