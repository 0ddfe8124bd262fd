"""Programs with JAX's "hi" primitives, which keep their rules until a program is compiled.

On JAX 0.12 much of `jax.numpy` has them inside; the new custom rules and the new `jax.checkpoint`
are made of them on every version, behind switches.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import hijax
from jax.scipy.interpolate import RegularGridInterpolator
from jax.scipy.linalg import expm
from test_compositions import REWRITING, C, W, X, rows, same

from jaxpr_opt import optimize, settings

XS = jnp.linspace(-2.0, 2.0, 9)
KEY = jax.random.key(0)


def root(x):
    def solve(f, z):
        return lax.fori_loop(0, 8, lambda _, z: z - f(z) / (3 * z**2 + 1), z)

    return lax.custom_root(lambda z: z**3 + z - x[0], 0.3, solve, lambda g, y: y / g(1.0))


def clipped(x):
    """With the rule that the cotangent is clipped: a gradient without the rule is another one."""

    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (jnp.clip(ct, -0.5, 0.5) * x,))
    return f(2 * x)


def tripled(x):
    """With the rule that the tangent is tripled."""

    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    @f.defjvp
    def _(primals, tangents):
        return f(*primals), 3 * tangents[0]

    return f(2 * x)


def recomputed(x):
    return jax.checkpoint(lambda x: jnp.sin(x) * jnp.cos(x))(x)


LIBRARY = {
    "searchsorted": lambda x: XS[jnp.searchsorted(XS, x)] * x,
    "interp": lambda x: jnp.interp(x, XS, XS**2),
    "digitize": lambda x: jnp.digitize(x, XS) * x,
    "histogram": lambda x: jnp.histogram(x, XS, weights=x)[0],
    "unique": lambda x: jnp.unique(x, size=2),
    "nonzero": lambda x: x[jnp.nonzero(x > 0, size=2)[0]],
    "choice": lambda x: jax.random.choice(KEY, x, (2,), p=jax.nn.softmax(x)),
    "custom_root": root,
    "grid": lambda x: RegularGridInterpolator((XS,), XS**3)(x[:, None]),
}
SWITCHED = {
    "jax_custom_vjp3": clipped,
    "jax_custom_jvp3": tripled,
    "jax_remat3": recomputed,
}


@pytest.fixture(params=SWITCHED)
def switched(request):
    """A program with one of the new primitives, where this version of JAX has it."""
    if not hasattr(jax.config, request.param):
        pytest.skip(f"{request.param} is not in JAX {jax.__version__}")
    jax.config.update(request.param, True)
    yield SWITCHED[request.param]
    jax.config.update(request.param, False)


def everything(o, f):
    """Values, gradients on both sides, and batches."""
    total = lambda x: jnp.sum(f(x) ** 2)
    return o(f)(X), jax.grad(o(total))(X), jax.vmap(o(jax.grad(total)))(rows(X))


@pytest.mark.parametrize("name", LIBRARY)
def test_library_functions(name):
    f = LIBRARY[name]
    same(everything(jax.jit, f), everything(optimize, f))


@pytest.mark.parametrize("name", LIBRARY)
def test_forward_mode_of_library_functions(name):
    both = lambda o: jax.jvp(o(LIBRARY[name]), (X,), (X + 1,))
    same(both(jax.jit), both(optimize))


def test_a_matrix_exponential():
    f = lambda x: jnp.sum(expm(jnp.outer(x, x), max_squarings=2))
    both = lambda o: jax.value_and_grad(o(f))(X[:2])
    same(both(jax.jit), both(optimize))


def test_new_rules(switched):
    same(everything(jax.jit, switched), everything(optimize, switched))
    same(everything(jax.jit, switched), everything(REWRITING, switched))


def loss(w, x):
    h = jnp.interp(w["a"] * x - w["b"], XS, XS**2)
    return jnp.sum(h * root(w["a"]) - XS[jnp.searchsorted(XS, x)])


NESTED = ["of_itself", "grad_of_jit", "vmap_of_grad", "reverse_over_reverse", "of_checkpoint",
          "checkpoint_dots", "grad_of_scan", "vmap_of_cond", "psum_over_vmap_axis",
          "checkified", "shard_map_around"]  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_composition(name):
    with settings.override(strict=True):
        same(C[name](jax.jit, loss)(W, X), C[name](REWRITING, loss)(W, X))


def test_what_they_stand_for_is_optimised(switched):
    """Nothing differentiates any more when a program is compiled: it is seen through them."""
    text = REWRITING(lambda x: switched(x - 1.0)).lower(X).as_text()
    assert "stablehlo.subtract" not in text


@pytest.mark.parametrize("check", [False, True])
def test_ahead_of_time(check):
    """Lowered, exported, and compared with itself after every pass."""
    f = lambda x: XS[jnp.searchsorted(XS, x - 1.0)] * x
    with settings.override(check=check):
        optimized = REWRITING(f)
        same(f(X), optimized.lower(X).compile()(X))
        same(f(X), jax.jit(optimized)(X))
        if not check:  # a callback cannot be exported
            same(f(X), jax.export.export(optimized)(X).call(X))


# ---------------------------------------------------------------- types XLA does not know


@dataclass(frozen=True)
class Scaled:
    whole: jax.Array
    scale: jax.Array


@dataclass(frozen=True)
class ScaledType(hijax.HiType):
    shape: tuple[int, ...]

    def __hash__(self):
        return hash(self.shape)

    def lo_ty(self):
        types = (self.shape, jnp.int8), ((), jnp.float32)
        return [hijax.ShapedArray(shape, jnp.dtype(dtype)) for shape, dtype in types]

    def lower_val(self, value):
        return [value.whole, value.scale]

    def raise_val(self, whole, scale):
        return Scaled(whole, scale)

    def to_tangent_aval(self):
        return hijax.ShapedArray(self.shape, jnp.dtype(jnp.float32))

    def str_short(self, *_, **__):
        return f"scaled{self.shape}"


hijax.register_hitype(Scaled, lambda value: ScaledType(value.whole.shape))
HiPrim = getattr(hijax, "HiPrim", None) or hijax.VJPHiPrimitive


class Convert(HiPrim):
    """To or from scaled integers, straight through for gradients."""

    def __init__(self, before, after):
        self.in_avals, self.out_aval, self.params = (before,), after, {}
        super().__init__()

    def expand(self, x):
        if isinstance(x, Scaled):
            return x.whole * x.scale
        scale = jnp.max(jnp.abs(x)) / 127
        return Scaled(jnp.round(x / scale).astype(jnp.int8), scale)

    def vjp_fwd(self, _, x):
        return self(x), None

    def vjp_bwd_retval(self, _, ct):
        return (ct,)


def scaled(x):
    return Convert(jax.typeof(x), ScaledType(x.shape))(x)


def unscaled(x):
    return Convert(jax.typeof(x), jax.typeof(x).to_tangent_aval())(x)


def rounds(x):
    """In a loop and outside of it."""
    step = lambda c, y: (c - y, unscaled(scaled(c)))
    c, ys = lax.scan(step, x, jnp.stack([x, 2 * x]))
    return jnp.sum(ys**2) + jnp.sum(unscaled(scaled(c - 1.0)))


@pytest.mark.parametrize("o", [optimize, REWRITING], ids=["optimize", "rewriting"])
def test_values_that_are_no_arrays(o):
    """Inside, as arguments, as results, and closed over."""
    squared = lambda q: jnp.sum(unscaled(q) ** 2 - 1)
    compositions = [
        lambda o: o(rounds)(X),
        lambda o: jax.grad(o(rounds))(X),
        lambda o: o(jax.grad(rounds))(X),
        lambda o: unscaled(o(lambda x: scaled(x - 1.0))(X)),
        lambda o: o(squared)(scaled(X)),
        lambda o: jax.grad(lambda x: o(squared)(scaled(x)))(X),
        lambda o: jax.jit(lambda q: o(lambda x: x - unscaled(q))(X))(scaled(X)),
    ]
    for composition in compositions:
        same(composition(jax.jit), composition(o))
