"""`donate="auto"` in functions made at random: no array is ever read after it was given away."""

import functools
import random
import textwrap

import jax
import jax.numpy as jnp
import pytest

import jaxpr_opt

NAMES = "abcd"
COUNT = 40
"""Functions a test; each calls `step` several times."""

step = jaxpr_opt.optimize(lambda x: x * 2 + 1, donate="auto")
both = jaxpr_opt.optimize(lambda x, y: (x + 1, y * 2), donate="auto")


class Writer:
    """Writes functions over a few variables that hold arrays, or containers of them."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def name(self):
        return self.random.choice(NAMES)

    def expression(self):
        a, b = self.name(), self.name()
        return self.random.choice([
            "make()", a, a, f"step({a})", f"step({a})", f"step({a})", f"step(step({a}))",
            "step(make())", f"step({a} + 0)", "kept[-1]", "step(kept[-1])", f"box['{a}']",
            f"[step(x) for x in ({a}, make())][1]", f"[step(x) for x in map(step, [{a}])][0]",
            f"call({a})", f"(lambda x: step(x))({a})", f"step({a} if flag() else {b})",
            f"step({a}) + {b}", f"(both({a}, {b}))[0]", f"both({a}, make())[1]",
            f"step(*[{a}])", f"(step({a}) if flag() else {a})", f"both({a}, ({a} := {b}))[0]",
        ])  # fmt: skip

    def statement(self, depth):
        a, b = self.name(), self.name()
        simple = [
            f"{a} = {self.expression()}",
            f"{a} = {self.expression()}",
            f"{a} = {self.expression()}",
            f"{a}, {b} = both({a}, {b})",
            f"{a}, {b} = both({b}, {self.expression()})",
            f"kept.append({self.expression()})",
            f"box['{a}'] = {b}",
            f"seen.append(float({a}[0]))",
            f"{a} = {b}",
            f"later.append(lambda {b}={b}: {b})",
        ]
        if depth == 0 or self.random.random() < 0.6:
            return self.random.choice(simple)
        body, other = (textwrap.indent(self.block(depth - 1), "    ") for _ in range(2))
        return self.random.choice(
            [
                f"for _ in range(3):\n{body}",
                f"for {a} in [{b}, make()]:\n{body}",
                f"if flag():\n{body}\nelse:\n{other}",
                f"while flag():\n{body}\n    if flag():\n        continue\n{other}",
                f"try:\n{body}\n    fail()\nexcept ValueError:\n{other}",
                f"try:\n{body}\nfinally:\n{other}",
                f"with suppress(ValueError):\n{body}\n    fail()",
            ]
        )

    def block(self, depth):
        return "\n".join(
            self.statement(depth) for _ in range(self.random.randint(1, 3 if depth < 2 else 6))
        )

    def function(self):
        start = "\n".join(f"{name} = make()" for name in NAMES)
        body = textwrap.indent(f"{start}\n{self.block(2)}\n{self.block(2)}", "    ")
        read = [name for name in NAMES if self.random.random() < 0.5]
        return f"def run():\n{body}\n    return [{', '.join(read)}]\n"


def outcome(source, step, both, seed):
    """What a function returns, sees and keeps."""
    decide = random.Random(seed)
    made = iter(range(1000))
    scope = {
        "make": lambda: jnp.full((8,), float(next(made))),
        "step": step,
        "both": both,
        "call": lambda x: step(x),  # noqa: PLW0108 -- a frame in between
        "flag": lambda: decide.random() < 0.4,
        "fail": functools.partial(_fail, decide),
        "suppress": __import__("contextlib").suppress,
        "kept": [jnp.full((8,), -1.0)],
        "box": {name: jnp.full((8,), -2.0) for name in NAMES},
        "seen": [],
        "later": [],
    }
    exec(source, scope)
    returned = scope["run"]()
    arrays = [*returned, *scope["kept"], *scope["box"].values(), *(f() for f in scope["later"])]
    return [x.tolist() for x in arrays], scope["seen"]


def _fail(decide):
    if decide.random() < 0.5:
        raise ValueError


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_read_after_it_was_given_away(seed):
    plain = jax.jit(lambda x: x * 2 + 1), jax.jit(lambda x, y: (x + 1, y * 2))
    for each in range(COUNT):
        source = Writer(f"{seed} {each}").function()
        assert outcome(source, step, both, each) == outcome(source, *plain, each), source
