"""Random programs: small recipes that print, shrink and run.

::

    program ::= step at the top, on arguments Args
    step    ::= Keep | Grow | Bend | Stir | Count | Toggle | Write | Look | Draw | Turn | Halve
              | Name | Say | Then(step, step) | If(test, step, step, how) | Loop(step, ...)
              | Checkpoint(step, policy) | Custom(step, rule) | Alias | Capture(step)
              | Hand(test, step, rows, reader, ...)
    test    ::= Below | Small | Flag | Masked | Early | Never | Not(test) | Both(test, test)

A step maps a state, a dictionary of arrays of several dtypes, to the next one, and may emit an
array.  A test is a bool of the state (carried), of the row a loop reads (known up front), or of
both.  Loops whose step is ``If(test, step, Keep())`` are the ones that skip; they are drawn most
often.  ``repr`` of a recipe is code that makes it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

ROWS, WIDTH = 4, 3
NODES = 5
State = dict[str, Any]
Step = Callable[[State, "Env"], tuple[State, tuple[Any, ...]]]
Test = Callable[[State, "Env"], Any]


class Args(NamedTuple):
    """What a program is run on."""

    x: Any
    w: Any
    xs: Any
    mask: Any
    n: Any
    bound: Any


class Env(NamedTuple):
    """What a step sees besides its state: outer values, and the row of the loop it is in."""

    w: Any
    xs: Any
    mask: Any
    t: Any
    n: Any
    bound: Any
    row: Any
    flag: Any
    time: Any
    above: Any
    """The number of the step of the loop around the one it is in."""


LOG: list[float] = []
"""What programs have said, in order."""


# -- tests ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Below:
    """A carried counter is below a bound known at run time."""

    def __call__(self, state, env):
        return state["i"] < env.n


@dataclass(frozen=True)
class Small:
    """A carried float is small."""

    def __call__(self, state, env):
        return state["x"][0] < env.bound


@dataclass(frozen=True)
class Flag:
    """A carried bool."""

    def __call__(self, state, env):
        return state["go"]


@dataclass(frozen=True)
class Masked:
    """A bool of the row: it may come back to true."""

    def __call__(self, state, env):
        return env.flag


@dataclass(frozen=True)
class Early:
    """The number of the row is below a bound."""

    def __call__(self, state, env):
        return env.time < env.n


@dataclass(frozen=True)
class Never:
    """A comparison with NaN."""

    def __call__(self, state, env):
        return state["x"][1] < env.bound * jnp.nan


@dataclass(frozen=True)
class Not:
    test: Test

    def __call__(self, state, env):
        return ~self.test(state, env)


@dataclass(frozen=True)
class Both:
    one: Test
    two: Test

    def __call__(self, state, env):
        return self.one(state, env) & self.two(state, env)


# -- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keep:
    """Nothing."""

    def __call__(self, state, env):
        return state, ()


@dataclass(frozen=True)
class Grow:
    """A linear step that reads the row and a weight."""

    def __call__(self, state, env):
        return {**state, "x": state["x"] * env.w + env.row + 0.5}, ()


@dataclass(frozen=True)
class Bend:
    """A nonlinear step; some are not finite everywhere."""

    how: Literal["tanh", "sin", "log", "sqrt", "reciprocal"]

    def __call__(self, state, env):
        return {**state, "x": getattr(jnp, self.how)(state["x"]) + env.w}, ()


@dataclass(frozen=True)
class Stir:
    """A step that is dear to replay."""

    def __call__(self, state, env):
        return {**state, "x": jnp.tanh(jnp.outer(state["x"], env.w) @ state["x"]) * 0.5}, ()


@dataclass(frozen=True)
class Count:
    """Advance the counter; `by` may wrap it around."""

    by: int

    def __call__(self, state, env):
        return {**state, "i": state["i"] + jnp.asarray(self.by, state["i"].dtype)}, ()


@dataclass(frozen=True)
class Toggle:
    """Set the flag by a test, perhaps only ever to false."""

    test: Test
    absorbing: bool

    def __call__(self, state, env):
        new = self.test(state, env)
        return {**state, "go": state["go"] & new if self.absorbing else new}, ()


Place = Literal["count", "time", "next", "back", "first", "square", "above", "data"]


def place(at: Place, state: State, env: Env) -> Any:
    """An index: counted as far as steps are taken, affine in the step or not, constant, that of an
    outer loop, or one that nobody knows.
    """
    match at:
        case "count":
            return state["i"].astype(jnp.int32)
        case "time":
            return env.time
        case "next":
            return env.time + 1
        case "back":
            return ROWS - env.time
        case "first":
            return jnp.int32(0)
        case "square":
            return env.time * env.time % 3
        case "above":
            return env.above
        case "data":
            return 2 * lax.argmax(state["x"], 0, jnp.int32) - 1


def real(x: Any) -> Any:
    """Numbers of any kind, to compute with."""
    return jnp.real(x).astype(jnp.float32)


How = Literal[
    "set", "clip", "marked", "add", "twice", "slice", "pair", "element", "where", "mask", "column",
    "multiply", "min", "max", "scaled"
]  # fmt: skip


@dataclass(frozen=True)
class Write:
    """Write to a carried buffer, and read of it, or all of it, before or after."""

    at: Place = "count"
    how: How = "set"
    reads: tuple[int, ...] = (-1,)
    early: bool = False
    whole: bool = False
    fills: bool = False

    def __call__(self, state, env):
        old, at = state["buffer"], place(self.at, state, env)
        row = state["x"] * 0.5 + (real(old[0]) * 0.1 if self.whole else 0.0)
        new = self._written(old, row.astype(old.dtype), at, state, env)
        source = old if self.early else new
        read = sum((0.3 * self._read(source, at, k, env) for k in self.reads), jnp.zeros(WIDTH))
        whole = 0.1 * env.w[0] * (real(source) @ env.w)[:WIDTH] if self.whole else 0.0
        return {**state, "buffer": new, "x": state["x"] + read + whole}, ()

    def _written(self, buffer, row, at, state, env):
        match self.how:
            case "set" | "multiply" | "min" | "max":
                return self._combined(self.how, buffer, row, at)
            case "clip":
                return buffer.at[at].set(row, mode="clip")
            case "marked":
                return buffer.at[at].set(row, unique_indices=True, indices_are_sorted=True)
            case "add":
                return buffer.at[at].add(row, mode="drop")
            case "twice":
                return buffer.at[jnp.stack([at, at // 2])].add(row)
            case "slice":
                return lax.dynamic_update_slice(buffer, row[None], (at, 0))
            case "pair":
                return lax.dynamic_update_slice(buffer, jnp.stack([row, row[::-1]]), (at, 0))
            case "element":
                return buffer.at[at, env.time].set(row[0])
            case "where" | "scaled":
                how = "set" if self.how == "where" else "multiply"
                new = self._combined(how, buffer, row, at)
                return jnp.where(state["x"][0] < env.bound, new, buffer)
            case "mask":
                return jnp.where(jnp.arange(len(buffer))[:, None] == at, row, buffer)
            case "column":
                return buffer.at[:WIDTH, at % WIDTH].set(row)

    def _combined(self, how, buffer, row, at):
        """Set, if they are not real numbers: no others are combined."""
        how = how if jnp.issubdtype(buffer.dtype, jnp.floating) else "set"
        return getattr(buffer.at[at], how)(row, mode="drop")

    def _read(self, buffer, at, k, env):
        """A row; of elements, the one `k` rows and the one `k` columns away."""
        if self.how == "element":
            return real(buffer[at + k, env.time]) - real(buffer[at, env.time + k])
        if self.fills:
            return real(buffer.at[at + k].get(mode="fill", fill_value=1))
        return real(buffer[at + k])


@dataclass(frozen=True)
class Alias:
    """A second name of a carried buffer, which stays what it was."""

    def __call__(self, state, env):
        old = real(state["twin"][1]) * 0.1
        return {**state, "twin": state["buffer"], "x": state["x"] + old}, ()


@dataclass(frozen=True)
class Capture:
    """A step whose outer array is a carried buffer."""

    step: Step

    def __call__(self, state, env):
        return self.step(state, env._replace(xs=real(state["buffer"][:ROWS])))[0], ()


@dataclass(frozen=True)
class Look:
    """Read a row of an outer array."""

    at: Place

    def __call__(self, state, env):
        return {**state, "x": state["x"] * 0.5 + env.xs[place(self.at, state, env)]}, ()


@dataclass(frozen=True)
class Draw:
    """Split a carried key."""

    def __call__(self, state, env):
        key, now = jax.random.split(state["key"])
        return {**state, "key": key, "x": state["x"] + jax.random.uniform(now, (WIDTH,))}, ()


@dataclass(frozen=True)
class Turn:
    """Arithmetic on complex numbers."""

    def __call__(self, state, env):
        return {**state, "z": state["z"] * lax.complex(state["x"][0], env.w[1]) + 1.0}, ()


@dataclass(frozen=True)
class Halve:
    """Arithmetic on bfloat16."""

    def __call__(self, state, env):
        h = state["h"] * 0.5 + state["x"].astype(jnp.bfloat16)
        return {**state, "h": h, "x": state["x"] - h.astype(jnp.float32) * 0.1}, ()


@dataclass(frozen=True)
class Name:
    """Scalars by name, each made of itself and of one some places on, or of the row at the ends."""

    how: Literal["tanh", "sin", "log", "sqrt", "reciprocal"]
    shift: int
    ring: bool
    summed: bool

    def __call__(self, state, env):
        new, total = {}, state["x"]
        for k in range(NODES):
            at = k + self.shift
            inside = self.ring or 0 <= at < NODES
            other = state[f"node{at % NODES}"] if inside else env.row[0]
            new[f"node{k}"] = getattr(jnp, self.how)(state[f"node{k}"]) * other + env.w[0]
            total = total + new[f"node{k}"] ** 2 if self.summed else total
        return {**state, **new, "x": total}, ()


@dataclass(frozen=True)
class Say:
    """An effect, whose order counts."""

    def __call__(self, state, env):
        jax.debug.callback(lambda i: LOG.append(float(i)), state["x"][0], ordered=True)
        return state, ()


@dataclass(frozen=True)
class Then:
    one: Step
    two: Step

    def __call__(self, state, env):
        state, first = self.one(state, env)
        state, second = self.two(state, env)
        return state, (*first, *second)


@dataclass(frozen=True)
class If:
    """Two steps, chosen by a cond, a switch or a select."""

    test: Test
    yes: Step
    no: Step
    how: Literal["cond", "done", "switch", "select"] = "cond"

    def __call__(self, state, env):
        p = self.test(state, env)
        yes, no = (lambda s, each=each: each(s, env)[0] for each in (self.yes, self.no))
        match self.how:
            case "cond":
                return lax.cond(p, yes, no, state), ()
            case "done":
                return lax.cond(~p, no, yes, state), ()
            case "switch":
                which = jnp.where(p, 1 + (state["i"] % 2).astype(jnp.int32), 0)
                return lax.switch(which, [no, yes, lambda s: yes(yes(s))], state), ()
            case "select":
                return jax.tree.map(lambda a, b: jnp.where(p, a, b), yes(state), no(state)), ()


@dataclass(frozen=True)
class Loop:
    """A loop of `length` steps; its rows are rows of the arrays around it, or rows of rows."""

    step: Step
    length: int
    kind: Literal["scan", "reverse", "unrolled", "fori", "while"] = "scan"
    emits: Literal["nothing", "x", "x w", "test", "number", "row"] = "nothing"
    read: Literal["not", "sum", "scan", "reverse"] = "not"
    nested: bool = False
    test: Test = Below()

    def __call__(self, state, env):
        if self.kind == "fori":
            return lax.fori_loop(0, self.length, self._counted(env), state), ()
        if self.kind == "while":
            return self._while(state, env), ()
        rows = self._rows(env)
        options = {"reverse": self.kind == "reverse", "unroll": 2 if self.kind == "unrolled" else 1}

        def body(state, row):
            inner = env._replace(**row, above=env.time)
            new, _ = self.step(state, inner)
            return new, self._emit(state, inner)

        state, ys = lax.scan(body, state, rows, length=self.length, **options)
        return self._read(state, ys), (() if ys is None else (ys,))

    def _counted(self, env):
        return lambda t, s: self.step(s, env._replace(time=t, above=env.time))[0]

    def _while(self, state, env):
        def go_on(both):
            return (both[0] < self.length) & self.test(both[1], env)

        def body(both):
            return both[0] + 1, self._counted(env)(*both)

        return lax.while_loop(go_on, body, (0, state))[1]

    def _rows(self, env):
        def rows(x):
            return x if self.length == ROWS else x[: self.length]

        flat = {"row": rows(env.xs), "flag": rows(env.mask), "time": rows(env.t)}
        if not self.nested:
            return flat
        return {
            **flat,
            "xs": flat["row"][:, None] * env.xs,
            "mask": flat["flag"][:, None] & env.mask,
            "t": flat["time"][:, None] * ROWS + env.t,
        }

    def _emit(self, state, env):
        match self.emits:
            case "x":
                return state["x"]
            case "x w":
                return jnp.outer(state["x"], env.w)
            case "test":
                return self.test(state, env)
            case "number":
                return jnp.where(self.test(state, env), 7, 3)
            case "row":
                return env.row * env.w
        return None

    def _read(self, state, ys):
        if self.read == "not" or ys is None:
            return state
        rows = ys.astype(jnp.float32).reshape(self.length, math.prod(ys.shape[1:]))
        total = jnp.zeros(rows.shape[1:])
        if self.read == "sum":
            total = rows.sum(0)
        else:
            reverse = self.read == "reverse"
            total, _ = lax.scan(lambda a, r: (a * 0.5 + r, None), total, rows, reverse=reverse)
        return {**state, "x": state["x"] + 0.1 * total[0]}


Row = Literal["before", "after", "made", "test", "count", "row"]
Reader = Literal[
    "back", "back", "on", "twice", "again", "split", "shift", "data", "while", "sum", "max", "sort",
    "cumsum", "last", "where", "cond", "custom"
]  # fmt: skip
Asks = Literal["test", "counted", "late", "anew", "mask", "not"]


@dataclass(frozen=True)
class Hand:
    """A loop that skips steps and hands rows over, and what reads them: a loop that skips the same
    steps (or nearly), one that does not, or all kinds of other ops.
    """

    test: Test
    step: Step
    how: Literal["cond", "done", "select"]
    rows: tuple[Row, ...]
    reader: Reader
    asks: Asks
    uses: Literal["times", "plus", "log", "over", "sqrt"]
    kind: Literal["scan", "reverse"] = "scan"

    def __call__(self, state, env):
        def body(both, row):
            (old, k), inner = both, env._replace(**row, above=env.time)
            p = self.test(old, inner)
            new = If(self.test, self.step, Keep(), self.how)(old, inner)[0]
            made = {"before": old["x"], "after": new["x"], "made": jnp.sin(old["x"]) * env.w,
                    "test": p, "count": k, "row": inner.row}  # fmt: skip
            return (new, k + p.astype(jnp.int32)), {name: made[name] for name in self.rows}

        rows = {"row": env.xs, "flag": env.mask, "time": env.t}
        start, reverse = (state, jnp.int32(0)), self.kind == "reverse"
        (state, k), given = lax.scan(body, start, rows, reverse=reverse)
        given = {"time": lax.iota(jnp.int32, ROWS), **given}
        return {**state, "x": self._read(state, env, k, given)}, ()

    def _read(self, state, env, k, given):
        x, numbers = state["x"], given["time"]
        whole = self._numbers(given) * jnp.ones((ROWS, WIDTH))

        def step(a, row):
            return self._step(a, row, state, env, k), None

        def loop(a, rows, back=False):
            return lax.scan(step, a, rows, reverse=back)[0]

        match self.reader:
            case "on" | "back":
                return loop(x, given, self.reader == "back")
            case "twice":
                return loop(x, given, True) + lax.scan(lambda a, r: (a * r, None), x, whole)[0]
            case "again":
                again = lambda a, w: (loop(a * w, given, True), None)
                return lax.scan(again, x, env.w)[0]
            case "split":
                halves = {name: a.reshape(2, ROWS // 2, *a.shape[1:]) for name, a in given.items()}
                return lax.scan(lambda a, rows: (loop(a, rows), None), x, halves)[0]
            case "shift" | "data":
                at = lax.argmax(env.xs, 0, jnp.int32)[0] if self.reader == "data" else ROWS - 1
                moved = {name: a[(at + numbers) % ROWS] for name, a in given.items()}
                return loop(x, {**moved, "time": numbers})
            case "while":
                go_on = lambda both: both[0] < jnp.minimum(k + 1, ROWS)
                row = lambda t: {name: a[t] for name, a in given.items()}
                body = lambda both: (both[0] + 1, step(both[1], row(both[0]))[0])
                return lax.while_loop(go_on, body, (0, x))[1]
        return x + self._whole(whole, x, env, k)

    def _whole(self, rows, x, env, k):
        """What ops of all rows make of them."""
        match self.reader:
            case "where":
                return jnp.where(jnp.arange(ROWS)[:, None] < k, rows, 0.0).sum(0)
            case "cond":
                return lax.cond(rows[-1, 0] < env.bound, lambda: x, lambda: rows[-2])
            case "custom":
                total = jax.custom_vjp(lambda a: a.sum(0))
                total.defvjp(lambda a: (a.sum(0), a), lambda a, g: (a * g,))
                return total(rows)
            case "last":
                return rows[-1] * rows[0]
            case "sort":
                return jnp.sort(rows, 0)[2]
            case "cumsum":
                return jnp.cumsum(rows, 0)[-2]
            case "max" | "sum":
                return getattr(rows, self.reader)(0)

    def _numbers(self, row):
        return sum((row[n] for n in self.rows if n in ("before", "after", "made", "row")), 1.0)

    def _step(self, a, row, state, env, k):
        v = self._numbers(row)
        way = {
            "times": lambda: a * v + 1, "plus": lambda: a + v, "log": lambda: a * jnp.log(v) + a,
            "over": lambda: a / v, "sqrt": lambda: a * jnp.sqrt(v) + v,
        }[self.uses]  # fmt: skip
        match self.asks:
            case "counted" | "late":
                p = row["time"] < k - (self.asks == "late")
            case "test" if "test" in row:
                p = row["test"]
            case "anew":
                again = {**state, "x": row.get("before", row.get("after", a))}
                p = self.test(again, env._replace(time=row["time"]))
            case "mask":
                p = env.mask[row["time"]]
            case _:
                return way()
        return jnp.where(p, way(), a) if self.how == "select" else lax.cond(p, way, lambda: a)


@dataclass(frozen=True)
class Checkpoint:
    """A step that is recomputed in the transpose."""

    step: Step
    policy: Literal[None, "dots_saveable", "everything_saveable"] = None

    def __call__(self, state, env):
        policy = self.policy and getattr(jax.checkpoint_policies, self.policy)
        return jax.checkpoint(lambda s, e: self.step(s, e)[0], policy=policy)(state, env), ()


@dataclass(frozen=True)
class Custom:
    """A step with its own derivative: forward mode, or backward with a loop of the user's."""

    step: Step
    rule: Literal["jvp", "vjp"]

    def __call__(self, state, env):
        def f(x, state, env):
            return self.step({**state, "x": x}, env)[0]["x"]

        def scaled(env, g):
            def step(c, r):
                return lax.cond(r, lambda: c * 0.5, lambda: c), None

            return lax.scan(step, g, env.mask)[0], None, None

        if self.rule == "jvp":
            custom = jax.custom_jvp(f)
            custom.defjvp(lambda args, tangents: (custom(*args), tangents[0] * 0.5))
        else:
            custom = jax.custom_vjp(f)
            custom.defvjp(lambda *args: (f(*args), args[2]), scaled)
        return {**state, "x": custom(state["x"], state, env)}, ()


FLAGS = np.arange(ROWS) % 3 != 1
NUMBERS = np.arange(ROWS, dtype=np.int32)


@dataclass(frozen=True)
class Recipe:
    """A whole program: flat arguments in, a dictionary of arrays out."""

    step: Step
    counter: Literal["int32", "int8", "uint8"] = "int32"
    start: Literal["zeros", "rows", "nan"] = "zeros"
    """What the buffer is at first,"""
    dtype: Literal["float32", "int32", "bool", "complex64"] = "float32"
    """of what kind,"""
    returned: Literal["whole", "row"] = "whole"
    """and what is wanted of it in the end."""
    captured: bool = False
    """Whether the flags and the numbers of rows are tables that the program captures."""

    def __call__(self, *args: Any) -> dict[str, Any]:
        x, w, xs, mask, n, bound = args
        numbers = lax.iota(jnp.int32, ROWS)
        if self.captured:
            mask, numbers = jnp.asarray(FLAGS), jnp.asarray(NUMBERS)
        env = Env(w, xs, mask, numbers, n, bound, xs[0], mask[0], numbers[0], numbers[0])
        state = {
            "x": x,
            "i": jnp.zeros((), self.counter),
            "go": bound < 100.0,
            "buffer": self._buffer(w),
            "twin": self._buffer(w),
            "key": jax.random.key(0),
            "z": jnp.complex64(1.0 + 1.0j),
            "h": jnp.ones(WIDTH, jnp.bfloat16),
            **{f"node{k}": w[0] * k for k in range(NODES)},
        }
        used = repr(self.step)
        for name, word in _OPTIONAL.items():
            if word not in used:
                del state[name]
        env = env._replace(n=n.astype(self.counter)) if "Early" not in used else env
        state, emitted = self.step(state, env)
        if self.returned == "row" and "buffer" in state:
            state["buffer"] = state["buffer"][ROWS]
        if "key" in state:
            state["key"] = jax.random.key_data(state["key"])
        return {**state, **{f"stack{k}": ys for k, ys in enumerate(emitted)}}

    def _buffer(self, w):
        match self.start:
            case "zeros":
                rows = jnp.zeros((ROWS + 2, WIDTH))
            case "rows":
                rows = jnp.outer(jnp.arange(ROWS + 2.0), w)
            case "nan":
                rows = jnp.full((ROWS + 2, WIDTH), jnp.nan)
        return rows.astype(self.dtype)


_OPTIONAL = {"buffer": "Write", "twin": "Alias", "key": "Draw", "z": "Turn", "h": "Halve"}
_OPTIONAL |= {f"node{k}": "Name" for k in range(NODES)}


# -- strategies -----------------------------------------------------------------------------------

TESTS = st.recursive(
    st.sampled_from([Below(), Small(), Flag(), Early(), Masked(), Below(), Small(), Never()]),
    lambda inner: st.one_of(st.builds(Not, inner), st.builds(Both, inner, inner)),
    max_leaves=2,
)

SIMPLE = st.one_of(
    st.sampled_from([Grow(), Then(Grow(), Count(1)), Then(Bend("sin"), Count(1)), Stir()]),
    st.builds(Bend, st.sampled_from(["tanh", "sin", "log", "sqrt", "reciprocal"])),
    st.builds(Count, st.sampled_from([1, 1, 2, 100])),
    st.builds(Toggle, TESTS, st.booleans()),
    st.sampled_from([Draw(), Turn(), Halve(), Say()]),
    st.deferred(lambda: WRITES),
    st.builds(Look, st.deferred(lambda: PLACES)),
)

PLACES = st.sampled_from(["time", "time", *get_args(Place)])

WRITES = st.builds(
    Write,
    PLACES,
    st.sampled_from(["set", *get_args(How)]),
    st.sampled_from([(-1,), (), (0,), (1,), (-1, -2), (0, -1, 1)]),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, True]),
)


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    how = st.sampled_from(["cond", "cond", "cond", "done", "select", "switch"])
    almost = st.sampled_from([Keep(), Keep(), Keep(), Count(1), Grow()])
    skipping = st.builds(If, TESTS, inner, almost, how)
    return st.one_of(
        st.builds(Then, inner, inner),
        skipping,
        _loops(skipping),
        _loops(st.builds(Then, skipping, st.sampled_from([Count(1), Count(0)]))),
        _loops(inner),
        _nests(inner),
        st.builds(Checkpoint, inner, st.sampled_from([None, None, "dots_saveable"])),
        st.builds(Custom, inner, st.sampled_from(["jvp", "vjp"])),
    )


def _loops(step: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        Loop,
        step,
        st.sampled_from([4, 4, 3, 2, 1, 0]),
        st.sampled_from(["scan"] * 5 + ["reverse", "unrolled", "fori", "while"]),
        st.sampled_from(["nothing", "nothing", "x", "x w", "test", "number", "row"]),
        st.sampled_from(["not", "sum", "scan", "reverse"]),
        st.booleans(),
        TESTS,
    )


@st.composite
def _nests(draw: Any, inner: st.SearchStrategy[Any]) -> Any:
    """Bounded loops of bounded loops on one test (or nearly), the program of jax#8239."""
    test, step = draw(TESTS), draw(inner)
    outer_test = draw(st.one_of(st.just(test), TESTS))
    remat = draw(st.booleans())
    loop = draw(_loops(st.just(If(test, step, Keep()))))
    level = If(outer_test, Checkpoint(loop) if remat else loop, Keep())
    return replace(draw(_loops(st.just(level))), nested=True)


STEPS = st.recursive(SIMPLE, _compound, max_leaves=5)

HAND = st.builds(
    Hand,
    TESTS,
    st.builds(Then, SIMPLE, st.sampled_from([Count(1), Grow()])),
    st.sampled_from(["cond", "cond", "done", "select", "select"]),
    st.sets(st.sampled_from(get_args(Row)), min_size=1, max_size=4).map(lambda s: (*sorted(s),)),
    st.sampled_from(get_args(Reader)),
    st.sampled_from(["test", "test", "counted", *get_args(Asks)]),
    st.sampled_from(["times", "plus", "log", "over", "sqrt"]),
    st.sampled_from(["scan", "scan", "scan", "reverse"]),
)

HANDS = st.builds(Recipe, HAND | HAND | st.builds(Loop, HAND, st.just(2), nested=st.booleans()))
"""Loops that hand over rows, of which those of skipped steps may be read."""

RECIPES = st.builds(
    Recipe,
    _loops(STEPS) | _nests(STEPS) | STEPS,
    st.sampled_from(["int32"] * 4 + ["int8", "uint8"]),
    st.sampled_from(["zeros", "rows"]),
    captured=st.sampled_from([False, False, True]),
)

STRAIGHT = st.builds(
    Write,
    st.sampled_from(["time", "next", "above"]),
    st.sampled_from(["set", "clip", "marked", "add", "element"]),
    st.sampled_from([(), (0,), (1,), (0, 1), (-1,)]),
    st.booleans(),
)
"""Writes to rows that are known, most of them in range."""

BLIND = st.builds(Write, PLACES, st.sampled_from(get_args(How)), st.just(()))
"""Writes without reads."""

TOUCHES = st.one_of(
    WRITES,
    STRAIGHT,
    st.builds(Then, WRITES, SIMPLE),
    st.builds(Then, st.builds(Then, WRITES, SIMPLE | st.just(Alias())), WRITES),
    st.builds(Then, WRITES, st.builds(Capture, _loops(SIMPLE))),
    st.builds(
        If,
        TESTS,
        BLIND | BLIND | WRITES,
        st.just(Keep()) | WRITES,
        st.sampled_from(["cond", "cond", "done", "select"]),
    ),
)

BUFFERS = st.builds(
    Recipe,
    _loops(TOUCHES) | _loops(TOUCHES) | _loops(_loops(TOUCHES)),
    st.sampled_from(["int32"] * 4 + ["int8", "uint8"]),
    st.sampled_from(["zeros", "rows", "zeros", "rows", "nan"]),
    st.sampled_from(["float32"] * 5 + ["int32", "bool", "complex64"]),
    st.sampled_from(["whole", "row"]),
    st.sampled_from([False, False, True]),
)
"""Loops that write a buffer in every step."""

TABLES = st.builds(
    Recipe,
    _loops(
        st.builds(
            Loop,
            st.builds(
                Then,
                st.builds(Look, PLACES),
                st.builds(replace, WRITES, at=st.just("above")) | st.builds(Look, PLACES),
            ),
            st.sampled_from([3, 3, 2, 1]),
            st.sampled_from(["scan", "scan", "reverse", "fori"]),
        )
    ),
    start=st.sampled_from(["zeros", "rows"]),
    captured=st.sampled_from([False, False, True]),
)
"""Loops of loops that read a table anywhere, and fill another row by row."""

NODE = st.builds(
    Name,
    st.sampled_from(["tanh", "sin", "log", "sqrt", "reciprocal"]),
    st.integers(-2, 2),
    st.booleans(),
    st.booleans(),
)

NAMES = st.builds(
    Recipe, _loops(NODE | st.builds(Then, NODE, NODE | SIMPLE) | _loops(NODE)), st.just("int32")
)
"""Loops that carry scalars by name."""


def arguments(n: int, bound: float, seed: int = 0) -> Args:
    """Arguments of a program: how many steps it takes depends on `n` and `bound`."""
    keys = jax.random.split(jax.random.key(seed), 4)
    x, w = (jax.random.normal(k, (WIDTH,)) for k in keys[:2])
    xs = jax.random.normal(keys[2], (ROWS, WIDTH))
    mask = jax.random.bernoulli(keys[3], 0.6, (ROWS,))
    return Args(x, w, xs, mask, jnp.int32(n), jnp.float32(bound))
