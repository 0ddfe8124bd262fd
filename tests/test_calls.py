"""Calls of optimised functions: arguments that are no arrays, modules that change, and the cache
that finds a function that was optimised before.
"""

import contextvars
import copy
import dataclasses
import functools
import gc
import pickle
import sys
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpr_opt import optimize, settings
from jaxpr_opt.boundary.static_leaves import WithStatics
from jaxpr_opt.decorator import unwrap
from jaxpr_opt.donation.calling import Donating

X = jnp.arange(3.0)
PREPARE = Donating._prepare


@jax.tree_util.register_pytree_node_class
class Validated:
    """A pytree whose constructor looks at its leaves."""

    def __init__(self, weight, activation=jnp.sin):
        if not hasattr(weight, "shape"):
            raise TypeError(f"weight must be an array, got {weight!r}")
        if not callable(activation):
            raise TypeError(f"activation must be a function, got {activation!r}")
        self.weight, self.activation = weight, activation

    def tree_flatten(self):
        return (self.weight, self.activation), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)

    def __call__(self, x):
        return self.activation(self.weight * x)


class Hashable(Validated):
    """One that may be a static argument."""

    __hash__ = object.__hash__


jax.tree_util.register_pytree_node_class(Hashable)


# -- leaves that are not arrays -------------------------------------------------------------------


def test_a_static_pytree_is_not_rebuilt():
    seen = []

    @functools.partial(optimize, static_argnums=0)
    def f(model, x):
        seen.append(model)
        return model(x)

    model = Hashable(np.ones(3))
    np.testing.assert_allclose(f(model, X), np.sin(X), rtol=1e-6)
    assert seen == [model]


@pytest.mark.parametrize("donate", [None, "matched", "auto"])
def test_a_pytree_is_only_rebuilt_of_its_own_leaves_and_of_tracers(donate):
    f = optimize(lambda model, x: (model(x), model), donate=donate)
    value, model = f(Validated(jnp.ones(3)), X + 0)
    np.testing.assert_allclose(value, np.sin(X), rtol=1e-6)
    assert (model.activation, model.weight.tolist()) == (jnp.sin, [1, 1, 1])


def test_leaves_that_are_no_arrays_are_static():
    traced = []

    @optimize
    def f(tree, x, *, mode="up"):
        traced.append(mode)
        return {"value": tree["f"](x) * (1 if mode == "up" else -1), "mode": mode}

    assert f({"f": jnp.cos, "w": X}, X, mode="up")["value"].tolist() == jnp.cos(X).tolist()
    assert f({"f": jnp.cos, "w": X + 1}, X + 1, mode="up")["mode"] == "up"
    assert traced == ["up"]
    assert f({"f": jnp.cos, "w": X}, X, mode="down")["value"].tolist() == (-jnp.cos(X)).tolist()
    assert f({"f": jnp.sin, "w": X}, X, mode="down")["value"].tolist() == (-jnp.sin(X)).tolist()
    assert traced == ["up", "down", "down"]
    assert f({"f": jnp.cos, "w": X}, X)["value"].tolist() == jnp.cos(X).tolist()


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [({1, 2}, "set"), (np.array(["a"]), "ndarray of dtype <U1"), (np.array([None]), "ndarray of")],
)
def test_a_leaf_that_is_no_array_and_not_hashable_gets_one_clear_line(leaf, kind):
    def loss(params, x):
        return x

    with pytest.raises(
        TypeError,
        match=rf"optimize: argument params\['a'\] of loss is not an array but of type {kind}",
    ) as error:
        optimize(loss)({"a": leaf}, X)
    assert "\n" not in str(error.value)


class Net:
    """What `jax.jit` refuses, as its arrays may change."""

    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return self.w * x

    @optimize
    def loss(self, x):
        return self(x)


class Settings:
    scale = 1

    def __init__(self):
        self.scale = 2


def test_a_dtype_alone_makes_no_array():
    """Layers of `flax.linen` have one, and JAX takes them for scalars."""

    @dataclasses.dataclass(frozen=True)
    class Layer:
        dtype: str = "float32"

        def apply(self, x):
            return x.astype(self.dtype)

    assert optimize(lambda layer, x: layer.apply(x))(Layer("int32"), X).dtype == "int32"


@pytest.mark.parametrize("leaf", [Net(X), Net(X).__call__, Settings(), Settings().__init__])
def test_an_object_that_may_change_is_no_part_of_a_program(leaf):
    with pytest.raises(TypeError, match=r"must be hashable by what it holds") as error:
        optimize(lambda net, x: x)(leaf, X)
    assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match=r"argument self of loss is not an array but of type Net"):
        Net(X).loss(X)
    assert optimize(lambda net, x: x, static_argnums=0)(leaf, X).tolist() == X.tolist()


@pytest.mark.parametrize(
    "leaf",
    [jnp.sin, jax.nn.relu, jax.jit(jnp.cos), functools.partial(jnp.dot, X), jnp, Net, "s", b"s",
     jnp.float32, np.dtype("f4"), ..., range(3), frozenset({1}), object(), str.upper,
     jax.devices()[0], "s".upper, abs],
)  # fmt: skip
def test_what_may_be_part_of_a_program(leaf):
    assert optimize(lambda net, x: x)(leaf, X).tolist() == X.tolist()


def test_transformations_see_through_static_leaves():
    f = optimize(lambda model, x: jnp.sum(model(x) ** 2))
    loss = lambda w, x: f(Validated(w), x)
    plain = lambda w, x: jnp.sum(jnp.sin(w * x) ** 2)
    w = X + 1
    np.testing.assert_allclose(jax.grad(loss)(w, X), jax.grad(plain)(w, X), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(w, X), jax.grad(plain)(w, X), rtol=1e-6)
    batch = jnp.stack([w, 2 * w])
    np.testing.assert_allclose(
        jax.vmap(loss, (0, None))(batch, X), jax.vmap(plain, (0, None))(batch, X), rtol=1e-6
    )
    np.testing.assert_allclose(jax.jvp(loss, (w, X), (X, X))[1], jax.jvp(plain, (w, X), (X, X))[1])


def test_a_partial_with_a_string():
    made = jax.tree_util.Partial(lambda name, w, x: w * x if name == "times" else w, "times", X)
    assert optimize(lambda f, x: f(x))(made, X).tolist() == [0, 1, 4]


def test_static_leaves_beside_the_options_of_jit():
    f = optimize(lambda n, a, m, b: m(a) * n + b, static_argnums=(0, -4), donate_argnums=3)
    donated = X + 0
    assert f(2, X, Validated(X), donated).shape == (3,)
    assert donated.is_deleted()
    assert not X.is_deleted()
    by_name = optimize(lambda a, *, m, n: m(a) * n, static_argnames="n")
    np.testing.assert_allclose(by_name(X, m=Validated(X), n=2), 2 * np.sin(X * X), rtol=1e-6)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = optimize(lambda m, a: m(a), in_shardings=(one, None), out_shardings=one)
    assert placed(Validated(X), X).sharding == one
    with pytest.raises(ValueError, match=r"out_shardings of .* must be one for all results"):
        optimize(lambda m, a: (a, a), out_shardings=(one, one))(Validated(X), X)


def test_stages_of_a_function_that_nobody_keeps():
    for how in ("trace", "lower", "eval_shape"):
        assert getattr(optimize(lambda x: x + 1), how)(X) is not None


def test_what_is_made_of_an_optimized_function_is_lowered_as_that():
    """JAX copies the attributes of what it wraps: `lower` must not be that of the function."""
    gradient = jax.jit(jax.grad(optimize(lambda x: jnp.sum(jnp.sin(x)))))
    x = jnp.arange(3.0)
    assert gradient.eval_shape(x).shape == (3,)
    for compiled in (gradient.lower(x).compile(), gradient.trace(x).lower().compile()):
        np.testing.assert_allclose(compiled(x), jnp.cos(x), rtol=1e-6)


@pytest.mark.parametrize("donate", [None, "matched", "auto"])
def test_stages_of_static_leaves(donate):
    """`trace`, `lower` and `eval_shape` take what a call takes, and say what it returns."""

    def f(model, x):
        return {"out": model["act"](x) * model["w"], "act": model["act"]}

    optimized = optimize(f, donate=donate)
    model = {"act": jnp.sin, "w": jnp.full(3, 2.0)}
    shapes = {"out": jax.ShapeDtypeStruct((3,), "float32"), "act": jnp.sin}
    assert optimized.eval_shape(model, X) == shapes
    traced, lowered = optimized.trace(model, X), optimized.lower(model, X)
    assert traced.out_info == lowered.out_info == shapes
    assert "sine" in lowered.as_text()
    for compiled in (traced.lower().compile(), lowered.compile()):
        made = compiled({"act": jnp.sin, "w": jnp.full(3, 2.0)}, jnp.arange(3.0))
        assert jnp.allclose(made["out"], 2 * jnp.sin(X))
        assert made["act"] is jnp.sin
        assert compiled.memory_analysis() is not None
    with pytest.raises(TypeError, match="f was compiled for other leaves that are not arrays"):
        lowered.compile()({**model, "act": jnp.cos}, X)


def test_donated_arrays_beside_static_leaves():
    f = optimize(lambda m, x: Validated(m.weight + x), donate="matched")
    model = Validated(X + 0)
    assert f(model, jnp.float32(1)).weight.tolist() == [1, 2, 3]
    assert model.weight.is_deleted()
    with pytest.raises(ValueError, match=r"m.*f32\[3\].*no result is"):
        optimize(lambda m, x: m(x).sum(), donate_argnums=0)(Validated(X + 0), X)


def test_an_array_may_become_a_string_and_back():
    f = optimize(lambda a, x: x + 1 if isinstance(a, str) else x + a, donate="matched")
    assert [f(a, X + 0).tolist() for a in (X + 0, "s", X + 0, "t")] == [[0, 2, 4], [1, 2, 3]] * 2


def test_errors_of_jit_stay_those_of_jit():
    def wrong(tree, x):
        return {"name": "a string", "x": x}

    message = r"function wrong at .* returned a value of type <class 'str'> at output component"
    for f in (jax.jit(wrong), optimize(wrong)):
        with pytest.raises(TypeError, match=message):
            f(X, X)
    with pytest.raises(ValueError, match=r"Non-hashable static arguments|hash"):
        optimize(wrong, static_argnums=0)([1], X)


# -- modules that change -------------------------------------------------------------------------


@pytest.fixture
def nnx(monkeypatch):
    """What `flax.nnx` looks like from here."""
    fake = types.ModuleType("flax.nnx")

    class Variable:
        def __init__(self, value):
            self.value = value

    class Intermediate(Variable):
        pass

    for kind in (Variable, Intermediate):
        jax.tree_util.register_pytree_node(
            kind, lambda v: ((v.value,), None), lambda _, x, kind=kind: kind(*x)
        )
    fake.Variable, fake.Intermediate = Variable, Intermediate
    monkeypatch.setitem(sys.modules, "flax.nnx", fake)
    return fake


def test_a_module_that_changes_in_vain_is_an_error(nnx):
    def step(module, x):
        module["mean"].value = module["mean"].value + x
        return x

    with pytest.raises(
        ValueError, match=r"optimize: step changes module\['mean'\]\S* and does not return it"
    ) as error:
        optimize(step)({"mean": nnx.Variable(X)}, X)
    assert "\n" not in str(error.value)


def test_a_module_that_changes_and_is_returned(nnx):
    @optimize
    def step(module, x):
        module["mean"].value = module["mean"].value + x
        return module

    assert step({"mean": nnx.Variable(X)}, X)["mean"].value.tolist() == [0, 2, 4]


def test_what_is_only_collected_may_be_lost(nnx):
    @optimize
    def step(module, x):
        module.value = x + 1
        return x

    assert step(nnx.Intermediate(X), X).tolist() == X.tolist()


SAME = jax.jit(lambda x: x)


@pytest.mark.parametrize(
    "hand_on",
    [
        jax.jit(lambda w, x: (w, x)),
        lambda w, x: jax.lax.scan(lambda c, y: (SAME(c), y), w, x),
        lambda w, x: (jax.lax.cond(x[0] > 0, lambda: SAME(w), lambda: w), x),
        lambda w, x: jax.lax.fori_loop(0, x[0].astype(int), lambda _, c: SAME(c), (w, x)),
        jax.checkpoint(lambda w, x: (w, jnp.sin(x))),
    ],
    ids=["jit", "scan", "cond", "while", "checkpoint"],
)
def test_a_variable_that_is_handed_on_did_not_change(nnx, hand_on):
    """`nnx.jit` and its like put what they return into every variable, changed or not."""

    @optimize
    def step(module, x):
        old = module.value
        module.value, x = hand_on(module.value, x)
        assert module.value is not old
        return x

    assert step(nnx.Variable(X), X).shape == (3,)
    text = str(jax.make_jaxpr(step)(nnx.Variable(X), X).out_avals)
    assert text.count("float32[3]") == 1


def test_a_variable_that_a_loop_changes_did_change(nnx):
    def step(module, x):
        module.value, x = jax.lax.scan(lambda c, y: (c + y, y), module.value, x)
        return x

    with pytest.raises(ValueError, match="changes module"):
        optimize(step)(nnx.Variable(X), X)


# -- the cache -----------------------------------------------------------------------------------


def test_a_function_that_is_optimised_again_is_not_traced_again():
    traced = []

    def f(x):
        traced.append(x)
        return x + 1

    for _ in range(3):
        assert optimize(f)(X).tolist() == [1, 2, 3]
        jax.grad(lambda x: optimize(f)(x).sum())(X)
        jax.jit(lambda x: 2 * optimize(f)(x))(X)
    assert len(traced) == 1
    assert optimize(f, keep_unused=True)(X).tolist() == [1, 2, 3]
    assert len(traced) == 1
    for _ in range(2):
        optimize(f, skip=["collapse-loops"])(X)
    assert len(traced) == 2
    prepared = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Donating, "_prepare", lambda *a: prepared.append(a) or PREPARE(*a))
        for _ in range(3):
            optimize(f, donate="matched")(X + 0)
    assert len(prepared) == 1


def test_switches_are_part_of_what_is_remembered():
    traced = []

    def f(x):
        traced.append(x)
        return x + 1

    optimize(f)(X)
    with settings.override(check=True):
        optimize(f)(X)
        optimize(f)(X)
    optimize(f)(X)
    assert len(traced) == 2
    with settings.override(disable=True):
        assert unwrap(optimize(f)) is None


def test_static_leaves_are_remembered_too():
    traced = []

    def f(model, x):
        traced.append(x)
        return model(x)

    for _ in range(3):
        optimize(f)(Validated(X), X)
    assert len(traced) == 1


@pytest.mark.parametrize("options", [{}, {"donate": "matched"}, {"donate_argnums": 0}])
def test_what_is_remembered_keeps_nothing_alive(options):
    big = jnp.ones(100)

    def f(x):
        return big[0] + (1 if isinstance(x, str) else x)

    for _ in range(2):
        optimize(f, **options)(X + 0)
        optimize(lambda x, f=f: f(x))(X)
        optimize(f, **options)("a name")
    dead = weakref.ref(f)
    del f
    gc.collect()
    assert dead() is None


def test_an_optimised_function_keeps_what_it_calls():
    f = optimize(lambda x: x + 1)
    g = optimize(f, donate_argnums=0)
    h = jax.vmap(optimize(functools.partial(lambda y, x: x + y, 1)))
    del f
    gc.collect()
    assert g(X + 0).tolist() == [1, 2, 3]
    assert h(X).tolist() == [1, 2, 3]


def doubled(x, how="twice"):
    return 2 * x if how == "twice" else x


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("options", [{}, {"donate": "matched"}])
def test_a_copy_of_an_optimised_function_keeps_what_it_calls(duplicate, options):
    f = optimize(lambda x, how="twice": doubled(x, how), **options)
    g = duplicate(f)
    del f
    gc.collect()
    assert g(X + 0).tolist() == [0, 2, 4]
    assert g(X + 0, "once").tolist() == [0, 1, 2]


def test_what_an_optimised_function_is_made_of_can_be_pickled():
    """`cloudpickle` sends a jitted function to another process by its parts."""
    f = optimize(doubled)
    wrapped, pipeline = f.__getstate__()["fun"], unwrap(f).pipeline
    sent = pickle.loads(pickle.dumps((wrapped, WithStatics(wrapped, jax.jit, {}), pipeline)))
    assert jax.jit(sent[0])(X).tolist() == [0, 2, 4]
    assert sent[1]((X, "once"), {})().tolist() == [0, 1, 2]
    assert sent[2] == pipeline
    assert "_hash" not in vars(sent[2])  # it differs between processes


def test_equal_functions_share_what_is_remembered():
    """As in `jax.jit`: methods are new objects whenever they are asked for."""
    traced = []

    class Model:
        def loss(self, x):
            traced.append(x)
            return x + 1

    model = Model()
    first = optimize(model.loss)
    first(X)
    second = optimize(model.loss)
    del first
    gc.collect()
    assert second(X).tolist() == [1, 2, 3]
    assert len(traced) == 1
    assert optimize(Model().loss)(X).tolist() == [1, 2, 3]
    assert len(traced) == 2


def test_functions_that_cannot_be_remembered():
    class Unhashable:
        __hash__ = None

        def __call__(self, x):
            return x + 1

    class Slots:
        __slots__ = ()

        def __call__(self, x):
            return x + 1

    for fun in (Unhashable(), Slots(), abs):
        for _ in range(2):
            assert optimize(fun)(X).shape == (3,)


def test_several_threads_get_one_program():
    traced, barrier = [], threading.Barrier(4)

    def f(x):
        traced.append(x)
        return x + 1

    def call():
        barrier.wait()
        unwrap(optimize(f))
        results.append(optimize(f)(X).tolist())

    results = []
    optimize(f)(X)
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(call,)) for _ in "four"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[1, 2, 3]] * 4
    assert len(traced) == 1
