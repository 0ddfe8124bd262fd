"""The cost model: which device it is of, and that its answers follow from the device's figures."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.cost.devices import CPU, DEVICES, GPU
from jaxpr_opt.cost.model import CostModel, cost_model, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.testing import traced


def ops(function, *types):
    return [op for op in import_jaxpr(traced(function, *types)).body.ops if not op.is_terminator]


def test_the_device_is_that_of_the_default_backend(monkeypatch):
    jnp.ones(3).block_until_ready()
    assert cost_model().device is CPU
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert cost_model().device is GPU
    monkeypatch.setattr(jax, "default_backend", lambda: "something new")
    assert cost_model().device is GPU


def test_a_product_with_a_vector_reads_its_matrix():
    """That takes longer than multiplying, and twice as long again if the matrix is copied first."""
    model = CostModel.of_backend("cpu")

    def seconds(product, *types):
        in_a_loop = lambda x, y: lax.map(lambda t: product(x * t, y), jnp.arange(3.0))
        graph = import_jaxpr(traced(in_a_loop, *types))
        (op,) = (op for op in graph.walk() if op.name == "dot_general")
        return model.repeated_apart(op), model.repeated([op])

    rows = lambda q, k: jnp.einsum("hd,hnd->hn", q, k)
    turned = lambda q, k: jnp.einsum("hd,nhd->hn", q, k)
    matrices = seconds(jnp.dot, "f32[256,256]", "f32[256,256]")
    as_it_is = seconds(rows, "f32[4,8]", "f32[4,400,8]")
    copied = seconds(turned, "f32[4,8]", "f32[400,4,8]")
    assert matrices[0] < 2 * matrices[1]
    assert as_it_is[0] > 10 * as_it_is[1]
    assert copied[0] > 2 * as_it_is[0]


def test_a_product_of_short_rows_takes_as_long_as_its_rows():
    """Points that a step moves by a small matrix: multiplying again took 1.2 times as long."""

    def seconds(model, *types):
        in_a_loop = lambda x, y: lax.map(lambda t: jnp.matmul(x * t, y), jnp.arange(3.0))
        graph = import_jaxpr(traced(in_a_loop, *types))
        (op,) = (op for op in graph.walk() if op.name == "dot_general")
        return model.repeated_apart(op) - model.moved(op.result.nbytes) - model.device.kernel

    model, flop = CostModel.of_backend("cpu"), CPU.flop
    short = seconds(model, "f32[800,4]", "f32[4,4]")
    assert short == pytest.approx(800 * CPU.product_row)
    assert short > 10 * 2 * 800 * 16 * flop
    assert seconds(model, "f32[50,3,3]", "f32[50,3,3]") == pytest.approx(150 * CPU.product_row)
    long = seconds(model, "f32[800,128]", "f32[128,128]")
    assert long == pytest.approx(2 * 800 * 128 * 128 * flop)
    columns = seconds(model, "f32[4,4]", "f32[4,800]")
    assert columns < short / 10
    empty = seconds(model, "f32[0,4,4]", "f32[0,4,4]")
    assert empty == 0
    vector = seconds(model, "f32[50,4,4]", "f32[50,4,1]")
    assert vector < 200 * CPU.product_row


def test_a_model_may_be_given():
    with using(CostModel().but(step=1.0)) as model:
        assert cost_model() is model
    assert cost_model().device is CPU


def test_blocks_of_rows():
    """All rows at once, if looking at them takes no time; a row may have no elements."""
    model = CostModel()
    assert model.block(1) == model.block(0) > model.block(1000) >= 1
    assert model.but(predicate=0.0).block(1000) > model.block(1)


@pytest.mark.parametrize(
    "asked",
    [
        lambda model, n: model.paired(n),
        lambda model, n: model.streamed(n),
        lambda model, n: model.added_up(n),
        lambda model, n: model.is_worth_starts(n, 1.0),
        lambda model, n: model.is_spared_enough(1, n),
    ],
)
def test_sizes_that_are_symbols(asked):
    """No price is made of them: JAX would make an array of it."""
    (n,) = jax.export.symbolic_shape("n")
    with pytest.raises(jax.errors.InconclusiveDimensionOperation):
        asked(CostModel(), n)


def test_models_are_values():
    assert CostModel().but(step=1.0) == CostModel().but(step=1.0) != CostModel()
    with pytest.raises(AttributeError):
        CostModel().device = GPU


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda device: device.name)
def test_figures_make_sense(device):
    assert device.cached < device.memory
    assert device.flop <= device.arithmetic < device.transcendental
    assert device.fused_step <= device.step
    model = CostModel(device)
    assert model.stored(device.cache) < model.stored(device.cache + 1)


def test_a_row_is_copied_into_a_far_stack_and_out_of_it():
    model, row, far = CostModel(GPU), 1 << 20, GPU.cache + 1
    copied = 3 * row * GPU.memory + GPU.kernel
    for is_new in (False, True):
        assert model.kept_row(row, far, is_new=is_new) == pytest.approx(copied)
    assert model.kept_row(row, row, is_new=False) == row * GPU.cached
    written = CostModel().kept_row(row, CPU.cache + 1, is_new=False)
    assert written == pytest.approx(row * CPU.memory)
    assert CostModel().kept_row(row, CPU.cache + 1, is_new=True) == CPU.noticed * written


def test_what_ops_take_in_a_loop_of_their_own():
    (product,) = ops(lax.dot, "f32[3,4]", "f32[4,5]")
    (sine,) = ops(jnp.sin, "f32[7]")
    assert CostModel(GPU).repeated_apart(product) > GPU.kernel + GPU.product
    assert CostModel(GPU).repeated_apart(sine) == CostModel(GPU).repeated([sine]) < GPU.kernel
    assert CostModel().repeated_apart(sine) > CPU.kernel


def test_functions_of_complex_numbers_take_longer():
    """A gradient that computes them again instead of storing them took 1.3 to 1.7 times as long."""
    model = CostModel()
    for function in (jnp.exp, jnp.tanh):
        (real,), (other,) = ops(function, "f32[512]"), ops(function, "c64[512]")
        assert model.repeated([other]) > max(10 * model.repeated([real]), model.stored(4096))
    *_, quotient = ops(lambda x: x / (x + 2), "c64[512]")
    assert model.repeated([quotient]) < model.stored(4096)


def test_functions_that_are_computed_number_by_number():
    """`cos` again for the gradient of `sin` took 1.3 times as long as storing it."""
    model = CostModel()
    (cosine,), (other,) = ops(jnp.cos, "f32[3000]"), ops(jnp.tanh, "f32[3000]")
    assert model.repeated_apart(cosine) > 5 * model.repeated_apart(other)
    assert CostModel(GPU).repeated_apart(cosine) == CostModel(GPU).repeated_apart(other)


@pytest.mark.parametrize(("by", "is_slow"), [(0.3, True), (0.25, True), (3.0, True), (2.0, False)])
def test_remainders_are_computed_number_by_number(by, is_slow):
    """They took 1.7 to 2 times as long again as stored, unless LLVM truncates a quotient."""
    model = CostModel()
    *_, op = ops(lambda x: lax.rem(x, jnp.full(x.shape, by, "float32")), "f32[512]")
    assert op.name == "rem"
    assert model.slow(op) == pytest.approx(512 * 2.7e-9 if is_slow else 0)
    (integers,) = ops(lax.rem, "i32[512]", "i32[512]")
    (unknown,) = ops(lax.rem, "f32[512]", "f32[512]")
    assert model.slow(integers) == 0 < model.slow(unknown)


@pytest.mark.parametrize("exponent", [1.7, -0.5, 0.5, 2.0, -1.0])
def test_powers_are_computed_number_by_number(exponent):
    """They took 1.25 to 1.4 times as long again, unless XLA multiplies or takes a root."""
    (op,) = ops(lambda x: lax.pow(x, jnp.full(x.shape, exponent, "float32")), "f32[512]")[-1:]
    assert op.name == "pow"
    assert (CostModel().slow(op) > 0) == (exponent in {1.7, -0.5})
    (unknown,) = ops(lax.pow, "f32[512]", "f32[512]")
    assert CostModel().slow(unknown) == pytest.approx(512 * CPU.slow_function)


def test_rows_of_a_batch_are_looked_up_number_by_number():
    """Read again they took up to 1.6 times as long as stored."""
    model = CostModel()

    def read(function, *types):
        (op,) = (op for op in ops(function, *types) if op.name == "gather")
        return op

    of_batch = read(jax.vmap(lambda x, i: x[i]), "f32[8,100,16]", "i32[8]")
    of_one = read(lambda x, i: x[i], "f32[100,16]", "i32[8]")
    assert model.read_again(of_one, 8) < model.stored(512) < model.read_again(of_batch, 8)


def test_functions_in_one_function_of_a_loop():
    """They are computed where they are read; some one by one, with all that is fused with them."""
    model = CostModel()
    for function, longer in ((jnp.tanh, 3000 * CPU.one_by_one), (jnp.exp, 0)):
        (op,) = ops(function, "f32[3000]")
        seconds = model.repeated_apart(op, one_by_one=True)
        assert seconds == pytest.approx(model.repeated([op]) + CPU.noticed * longer)
    fused = ops(lambda x: jnp.sum(x * 2), "f32[3000]")
    written = model.run(fused[1:]) + model.repeated(fused[:1])
    assert model.differentiated(fused, 0) == pytest.approx(3 * written)
    assert model.differentiated(fused, 9) == pytest.approx(3 * (written + model.moved(9)))


def test_what_nobody_reads_takes_no_time_of_a_step():
    graph = import_jaxpr(traced(lambda x: jnp.cos(jnp.sin(x)), "f32[999]"))
    both = CostModel().step_seconds(graph.body)
    sine, cosine, _ = graph.body.ops
    Rewriter(graph).set_outputs(graph.body, [sine.result])
    assert cosine in graph.body.ops
    assert CostModel().step_seconds(graph.body) == both / 2


def test_what_ops_take():
    model = CostModel()
    (product,) = ops(lax.dot, "f32[3,4]", "f32[4,5]")
    (sine,) = ops(jnp.sin, "f32[7]")
    (moved,) = ops(jnp.transpose, "f32[3,4]")
    assert model.repeated([product]) == pytest.approx(120 * CPU.flop)
    assert model.repeated([sine]) == pytest.approx(7 * CPU.transcendental)
    assert model.repeated([moved]) == 0 < model.run([moved])


def test_windows_in_place_are_kernels_of_a_gpu():
    """A fence keeps reads from the write: kernels of their own, which a small copy is not worth;
    so is adding to each of several windows, where one kernel adds all.
    """
    small, large = jax.ShapeDtypeStruct((64, 64), "float32"), 64 << 20
    (array,) = import_jaxpr(traced(lambda x: x + 1, small)).body.params
    for device, is_less in ((CPU, True), (GPU, False)):
        model = CostModel(device)
        assert model.is_less_fenced([256, 256], array.nbytes, whole_is_read=False) == is_less
        assert model.is_less_fenced([256, 256], large, whole_is_read=False)
        assert model.is_less_in_place([256] * 9, array) == is_less
        assert model.is_less_in_place([256], array)


@pytest.mark.parametrize(
    ("windows", "apart", "nbytes", "close"),
    [
        (256, 1000, 4, True),
        (48, 1024, 4, True),
        (128, 1024, 4, False),
        (32, 4096, 4, True),
        (64, 4096, 4, False),
        (256, 1024, 64, True),
        (600, 1000, 64, False),
    ],
)
def test_columns_of_tables(windows, apart, nbytes, close):
    """Lines a power of two apart take each other's places, which few of them may."""
    assert CostModel().are_close(windows, apart, nbytes) == close
