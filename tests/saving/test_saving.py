"""A saved program is the program: the same text, the same values; other files are refused."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.bridge.compat_source import user_frame
from jaxpr_opt.cli import main
from jaxpr_opt.errors import TargetError
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.reports import observe
from jaxpr_opt.saving.read import Saved, load
from jaxpr_opt.saving.values import UnwritableError
from jaxpr_opt.saving.write import to_json
from jaxpr_opt.targets import types

X = jnp.linspace(0.1, 1.0, 6)
TABLE = np.linspace(0.0, 1.0, 2000, dtype=np.float32)


def loops(x, n):
    def step(carry, row):
        total, count = carry
        total = lax.cond(row > 0.5, lambda t: t + row, lambda t: t * 2.0, total)
        return (total, count + 1), jnp.sin(total) * n

    (total, count), rows = lax.scan(step, (0.0, 0), x, reverse=True)
    limit = lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 0.5), (0, total))
    return rows, lax.switch(count % 3, [jnp.cos, jnp.tan, lambda y: y + 1], limit[1])


def tables(x, i):
    sums = jnp.zeros(4).at[i].add(x).at[i[0]].set(1.0)
    image = x.reshape(1, 1, 2, 3)
    kernel = jnp.ones((1, 1, 2, 2))
    turned = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    return (
        sums[i],
        jnp.sort(x),
        jnp.argmax(x),
        turned,
        x.astype(jnp.bfloat16),
        jnp.asarray(TABLE)[i],
        1j * x,
    )


def noise(key, old):
    fresh = jax.random.PRNGKey(3)
    return jax.random.normal(key, (3,)), jax.random.split(old), jax.random.uniform(fresh)


def kept(x):
    inner = jax.checkpoint(lambda y: jnp.sum(jnp.sin(y) ** 2))
    return jax.jit(inner, inline=False)(x) + jnp.sum(jax.nn.relu(x))


PROGRAMS = {
    "loops": (loops, (X, 3)),
    "tables": (tables, (X, jnp.arange(6) % 4)),
    "noise": (noise, (jax.random.key(0), jax.random.PRNGKey(1))),
    "gradient": (jax.grad(lambda x: loops(x, 3)[0].sum() + kept(x)), (X,)),
}


def saved(fun, args, name="program.json", tmp_path=None):
    """A function as a program that was a file, what of it is opaque, and its graph."""
    graph = observe.original(fun, args, {})
    made = to_json(graph, None, [False] * len(graph.inputs), {})
    return Saved(json.loads(json.dumps(made.data, allow_nan=False)), Path.cwd()), made.opaque, graph


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_the_program(name):
    fun, args = PROGRAMS[name]
    read, opaque, graph = saved(fun, args)
    again = observe.original(read, read.arguments, {})
    assert not opaque
    assert not read.unknown
    if name != "tables":  # where an array that was captured is an argument
        assert improved(again) == improved(import_jaxpr(export(graph), "final"))
    captured = [TABLE] * (len(read.arguments) - len(args))
    made, expected = jax.jit(read)(*args, *captured), jax.tree.leaves(jax.jit(fun)(*args))
    for x, y in zip(made, expected, strict=True):
        assert jnp.all(x == y)


def improved(graph):
    """The text of what the passes make of a program, and what of it was transposed, where."""
    made = observe.improved(graph)[0]
    ops = [op for op in made.walk() if op.source.transposes]
    text = to_text(made).replace("[sharding=named_sharding]", "")  # of an empty mesh: says nothing
    return text, [(op.name, user_frame(op.source.info)) for op in ops]


def test_ops_are_where_they_were():
    read, _, graph = saved(*PROGRAMS["gradient"])
    again = observe.original(read, read.arguments, {})
    for name in ("sin", "scan", "cond", "mul"):
        one, other = ([op for op in each.walk() if op.name == name] for each in (graph, again))
        places = [(user_frame(a.source.info), user_frame(b.source.info))
                  for a, b in zip(one, other, strict=True)]  # fmt: skip
        assert all(was is None or was == now for was, now in places)
        assert any(was is not None and was[0] == __file__ for was, _ in places)


def test_what_a_file_cannot_hold_is_known_by_its_types():
    """A callback stays an op with an effect: nothing removes it, and what reads it is there."""

    def printed(x):
        jax.debug.callback(print, x)
        return jax.pure_callback(np.sin, x, x) + 1

    read, opaque, _ = saved(printed, (X,))
    with pytest.raises(TargetError, match="does not hold `pure_callback`, so its derivative"):
        observe.original(jax.grad(lambda x: read(x)[0].sum()), (types(X),), {})
    assert set(opaque) == {"debug_callback", "pure_callback"}
    names = [op.name for op in observe.improved(observe.original(read, (types(X),), {}))[0].walk()]
    assert "unknown_pure_callback" in names
    assert "unknown_debug_callback" in names


def test_a_size_that_is_a_symbol_is_refused():
    (size,) = jax.export.symbolic_shape("n")
    with pytest.raises(UnwritableError, match="a size that is a symbol"):
        saved(jnp.sin, (jax.ShapeDtypeStruct((size,), jnp.float32),))


def test_a_primitive_that_is_not_here_is_known_by_its_types(tmp_path):
    data = saved(jnp.sin, (X,))[0].data
    (op,) = data["body"]["ops"]
    op["primitive"] = "sine_of_tomorrow"
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.warns(UserWarning, match="does not have sine_of_tomorrow: only their types"):
        read = load(tmp_path / "a.json")
    (made,) = jax.eval_shape(read, *read.arguments)
    assert (made.shape, made.dtype) == (X.shape, X.dtype)


def damaged():
    data = saved(*PROGRAMS["loops"])[0].data
    text = json.dumps(data)
    yield "no JSON", text[: len(text) // 2], "is not JSON"
    yield "nothing of ours", "[1, 2]", "`jaxpr-opt run --save DIR` writes those"
    yield "tomorrow's", json.dumps({**data, "version": 99}), "another version of jaxpr-opt"
    yield "no body", json.dumps({**data, "body": {}}), "is damaged: KeyError"
    yield "a type less", json.dumps({**data, "types": data["types"][:1]}), "is damaged"
    yield "numbers swapped", text.replace('"in": [1', '"in": [77', 1), "is damaged"
    yield "an unknown op", text.replace('"op": "scan"', '"op": "__init__"'), "is damaged"
    yield "deep", '{"a":' * 100_000, "is not JSON"


@pytest.mark.parametrize(("text", "says"), [pytest.param(*d[1:], id=d[0]) for d in damaged()])
def test_other_files_get_one_line(text, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(TargetError, match=says):
        load(tmp_path / "a.json")
    assert main(["explain", "a.json"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_commands_read_saved_programs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("loops", "gradient"):
        (tmp_path / f"{name}.json").write_text(json.dumps(saved(*PROGRAMS[name])[0].data))
    assert main(["lint", "gradient.json", "loops.json"]) == 0
    assert main(["diff", "--stat", "loops.json", "gradient.json"]) == 0
    assert main(["explain", "gradient.json"]) == 0
    assert main(["residuals", "loops.json"]) == 0
    assert main(["report", "gradient.json", "--html", "page.html"]) == 0
    told = capsys.readouterr().out
    assert "No findings" in told
    assert "wrote page.html" in told
    assert main(["explain", "loops.json", "--args", "f32[3]"]) == 2
    assert "has its own arguments: leave --args out" in capsys.readouterr().err
    assert main(["lint", "missing.json"]) == 2
    assert "cannot read missing.json" in capsys.readouterr().err
