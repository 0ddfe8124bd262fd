"""`residuals`: what a gradient keeps, from which line, for what, and what becomes of it."""

import inspect
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from examples import bounded_while, kv_cache
from jaxpr_opt.cli import main
from jaxpr_opt.lint.options import Options, Spec
from jaxpr_opt.lint.target import Target
from jaxpr_opt.reports import residual_report
from jaxpr_opt.reports.residuals import ArgnumsError
from jaxpr_opt.testing import assert_residual_bytes

W, X = np.eye(4, dtype=np.float32), np.ones((3, 4), np.float32)


def layer(w, x):
    return jnp.tanh(x @ w)  # the line of the layer


def looped(w, x):
    return jnp.sum(lax.scan(lambda h, _: (layer(w, h), None), x, None, length=5)[0])


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


def by_name(report):
    return {row.name: row for row in report.kept}


def test_a_row_says_from_where_for_what_how_big_and_how_often():
    report = jaxpr_opt.residuals(looped, W, X)
    squares = next(row for row in report.kept if row.name in ("one_minus_square", "sub"))
    line = (__file__, line_of(layer, "the line of the layer"), "layer")
    assert (squares.shape, squares.lengths, squares.count) == ("f32[3,4]", (5,), 1)
    assert (squares.bytes, squares.formula) == (5 * 48, "5 x 48 B")
    assert (squares.frame, squares.kind) == (line, "intermediate")
    assert [need.op for need in squares.needed_by] == ["mul"]
    assert {need.frame for need in squares.needed_by} == {line}


def test_the_total_is_told_beside_that_of_the_arguments():
    report = jaxpr_opt.residuals(looped, W, X)
    assert report.bytes == sum(row.bytes for row in report.kept)
    assert report.argument_bytes == W.nbytes  # w; of x the loop keeps its own copy
    assert (report.parameter_bytes, report.input_bytes) == (W.nbytes, W.nbytes + X.nbytes)


STEPS = [partial(looped), kv_cache.loss, partial(bounded_while.loss, bound=8)]
GIVEN = [
    lambda: (W, X),
    partial(kv_cache.arguments, length=8, width=4),
    partial(bounded_while.arguments, 8, 1, 2),
]


@pytest.mark.parametrize(("loss", "given"), [*zip(STEPS, GIVEN, strict=True)])
def test_one_figure_has_one_definition(loss, given):
    """What `residuals`, `diff`, `explain`, `report`, lint, growth and assertions call kept."""
    args = given()
    gradient = jax.value_and_grad(loss)
    report = jaxpr_opt.residuals(loss, *args)
    assert report.residual_bytes > 0
    assert report.residual_bytes == sum(
        row.bytes for row in report.kept if row.kind == "intermediate" and not row.is_unread
    )
    target = Target(name="t", function=loss, given=args, spec=Spec(mode="gradient"))
    assert target.subject(Options()).residual_bytes == report.residual_bytes
    explained = jaxpr_opt.explain(gradient, *args).diff
    assert explained.before.residual_bytes == report.residual_bytes
    grown = jaxpr_opt.growth(gradient, lambda n: args, (1, 2)).growth
    assert grown["residual_bytes"].amounts == (report.residual_bytes,) * 2
    assert_residual_bytes(loss, args, at_most=report.residual_bytes)
    with pytest.raises(AssertionError):
        assert_residual_bytes(loss, args, at_most=report.residual_bytes - 1)


def test_arguments_are_called_what_they_are_called():
    def loss(params, *, scale):
        return jnp.sum(jnp.sin(params["w"]) * params["layers"][0]) * jnp.sum(scale)

    report = jaxpr_opt.residuals(loss, {"w": X, "layers": [X]}, scale=X)
    arguments = {row.name for row in report.kept if row.kind == "argument"}
    assert "params['layers'][0]" in arguments
    assert not any("cotangent" in name for name in arguments)


def test_layers_of_a_python_loop_are_one_row():
    def layers(w, x):
        for _ in range(3):
            x = jnp.sin(x @ w)
        return x

    report = jaxpr_opt.residuals(layers, W, X)
    cosine = by_name(report)["cos"]
    assert (cosine.count, cosine.bytes, cosine.formula) == (3, 3 * 48, "3 x 48 B")


def test_the_line_is_that_of_the_call_of_a_library():
    """JAX traces `gelu` once: the second call has a line of its own all the same."""

    def twice(x):
        x = jax.nn.gelu(x, approximate=False)  # first
        return jax.nn.gelu(x, approximate=False)  # second

    report = jaxpr_opt.residuals(twice, X)
    lines = {row.frame[1] for row in report.kept if row.frame is not None}
    assert lines == {line_of(twice, "# first"), line_of(twice, "# second")}


def test_what_nothing_reads_is_reported():
    """`vjp` hands over the zeros of the other case too, as if somebody asked for its cotangent."""
    report = jaxpr_opt.residuals(lambda x: jnp.where(x > 0, x, 0.0), X)
    assert {row.name: bool(row.needed_by) for row in report.kept} == {
        "gt": True,
        "broadcast_in_dim": False,
    }
    assert report.unread_bytes == X.nbytes
    assert "read by nothing" in str(report)


def test_what_optimising_leaves_and_which_pass_did_it():
    report = jaxpr_opt.residuals(kv_cache.loss, *kv_cache.arguments(length=16, width=4))
    caches = [row for row in report.kept if row.shape == "f32[16,4]" and row.lengths]
    assert {row.passes for row in caches} == {("undo-carried-writes",)}
    assert {row.optimized_bytes for row in caches} == {16 * 4 * 4}
    assert report.optimized_bytes < report.bytes / 2


def test_what_only_the_optimised_program_keeps():
    """The first steps store; the others are replayed from what each starts with."""
    loss = partial(bounded_while.loss, bound=64, loop=bounded_while.single_while)
    report = jaxpr_opt.residuals(loss, *bounded_while.arguments(width=128, batch=32))
    hidden = [row for row in report.kept if row.shape == "f32[32,128]"]
    assert hidden
    assert all(row.optimized_bytes <= row.bytes / 16 for row in hidden)
    starts = {row.shape for row in report.instead}  # of the buffer, or of a step's row in it
    assert "i32[]" in starts and any(shape.endswith("32,1]") for shape in starts)
    assert report.optimized_bytes < report.bytes / 10


def test_what_could_be_made_again_is_reported():
    def loss(x, scale):
        return jnp.sum(jnp.exp(jnp.sin(x)) * scale)

    cosine = by_name(jaxpr_opt.residuals(loss, X, X))["cos"]
    assert cosine.cheap == "cos of x"
    product = by_name(jaxpr_opt.residuals(lambda w, x: jnp.sum(jnp.sin(x @ w)), W, X))["cos"]
    assert product.cheap == ""  # a product is not cheap


@pytest.mark.parametrize("order", ["plain", "jitted", "optimised", "jitted with static arguments"])
def test_functions_of_all_kinds(order):
    jit = partial(jax.jit, static_argnums=2, static_argnames="mean")

    def loss(w, x, power, mean=False):
        return (jnp.mean if mean else jnp.sum)(jnp.sin(x @ w) ** power)

    functions = {
        "plain": partial(loss, power=2),
        "jitted": jax.jit(partial(loss, power=2)),
        "optimised": jaxpr_opt.optimize(partial(loss, power=2)),
    }
    if order in functions:
        report = jaxpr_opt.residuals(functions[order], W, X, argnums=(0, 1))
    else:
        report = jaxpr_opt.residuals(jit(loss), W, X, 2, argnums=(0, 1), mean=True)
    assert {"w", "x", "cos"} < by_name(report).keys()
    assert report.parameter_bytes == W.nbytes + X.nbytes


def test_outputs_of_any_kind():
    def many(x):
        return {"a": jnp.sin(x), "b": (x > 0, jnp.int32(3))}, x.shape[0]

    assert by_name(jaxpr_opt.residuals(many, X)).keys() == {"cos"}


def test_no_data_is_needed():
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (W, X)]
    assert jaxpr_opt.residuals(looped, *types) == jaxpr_opt.residuals(looped, W, X)


def test_a_training_step_is_taken_as_it_is():
    def step(w, x):
        value, gradient = jax.value_and_grad(looped)(w, x)
        return w - 0.1 * gradient, value

    report, inner = jaxpr_opt.residuals(step, W, X), jaxpr_opt.residuals(looped, W, X)
    assert (report.bytes, report.name) == (inner.bytes, "step")
    assert report.parameter_bytes is None
    twice = jaxpr_opt.residuals(step, W, X, argnums=0)
    assert (twice.name, twice.bytes > report.bytes) == ("grad(step)", True)


def test_a_function_that_keeps_nothing():
    report = jaxpr_opt.residuals(lambda x: x + x, X)
    assert (report.kept, report.bytes) == ((), 0)
    assert str(report) == "grad(<lambda>) keeps nothing for a backward pass"


def test_a_number_is_handed_over_too():
    (row,) = jaxpr_opt.residuals(lambda x: x * 2.0, X).kept
    assert (row.name, row.bytes, row.is_unread) == ("number", 4, False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jaxpr_opt.residuals(looped, W, X, argnums=2), "no argument 2 .*: 2 positional"),
        (lambda: jaxpr_opt.residuals(lambda: 1.0), "no argument holds floats"),
        (lambda: jaxpr_opt.residuals(lambda n: n, 3), "no argument holds floats"),
    ],
)
def test_there_must_be_something_to_differentiate_by(call, message):
    with pytest.raises(ArgnumsError, match=message):
        call()


def test_what_is_no_function_is_an_error():
    with pytest.raises(TypeError, match=r"^residuals: fun must be callable, got 3$"):
        jaxpr_opt.residuals(3)
    with pytest.raises(TypeError, match=r"^<lambda> returned a str: JAX traces functions that"):
        jaxpr_opt.residuals(lambda x: "sin", 1.0)


# -- what is shown


def test_it_is_shown_in_80_columns_with_the_largest_first(monkeypatch):
    monkeypatch.setattr(residual_report, "MAX_ROWS", 3)
    report = jaxpr_opt.residuals(kv_cache.loss, *kv_cache.arguments())
    text = str(report)
    assert not [line for line in text.splitlines() if len(line) > 80 or line != line.rstrip()]
    first, *_ = text.splitlines()
    assert first.startswith("grad(loss) keeps 5")
    row = text.partition("\n\n")[2].splitlines()
    assert row[0] == " 262 kB  dynamic_update_slice f32[64,16] = 64 x 4.1 kB"
    assert row[1].strip().startswith("made at ")
    assert row[2].strip().startswith("read by the transpose of dot_general (line ")
    assert row[3].strip() == "optimised: 4.1 kB (undo-carried-writes)"
    assert "smaller values" in text


def test_machines_get_everything():
    report = jaxpr_opt.residuals(looped, W, X)
    told = json.loads(json.dumps(report.to_dict()))
    assert told["bytes"] == report.bytes
    assert len(told["kept"]) == len(report.kept)
    assert told["kept"][0].keys() >= {"name", "shape", "bytes", "file", "line", "needed_by"}


PROGRAM = """
import jax, jax.numpy as jnp
def loss(w, x):
    return jnp.sum(jnp.sin(x @ w))
def arguments():
    return jax.ShapeDtypeStruct((4, 4), "float32"), jax.ShapeDtypeStruct((3, 4), "float32")
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / f"{tmp_path.name}_kept.py"
    path.write_text(PROGRAM)
    return str(path)


def test_the_command_line(module, capsys):
    call = ["residuals", f"{module}:loss", "--args-from", f"{module}:arguments"]
    assert main([*call, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in told["kept"]} == {"cos", "x"}
    assert main([*call, "--argnums", "0,1"]) == 0
    assert "grad(loss) keeps" in capsys.readouterr().out


def test_mistakes_on_the_command_line_are_one_line(module, capsys):
    call = ["residuals", f"{module}:loss", "--args-from", f"{module}:arguments"]
    assert main([*call, "--argnums", "2"]) == 2
    assert "there is no argument 2 to differentiate by" in capsys.readouterr().err
    assert main([*call, "--argnums", "x"]) == 2
    assert "write argument positions" in capsys.readouterr().err
