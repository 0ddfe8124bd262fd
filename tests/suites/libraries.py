"""Libraries on JAX, where their tests are, and which of them are run: minutes, not hours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A source distribution with tests in it."""

    name: str
    tests: tuple[str, ...]
    """Files or folders of its source."""
    needs: tuple[str, ...] = ()
    """What its tests import beside it."""
    only: str = ""
    """An expression for ``pytest -k``."""
    seconds: int = 600
    """After which it is ended."""
    looks_inside: tuple[str, ...] = ()
    """Parts of the names of tests that look at what JAX makes, not at what it computes."""


LIBRARIES = (
    Library("optax", ("optax/_src/update_test.py", "optax/_src/linear_algebra_test.py",
                      "optax/_src/linesearch_test.py", "optax/transforms", "optax/losses"),
            ("absl-py", "chex", "flax"), "not jvp"),
    Library("chex", ("chex/_src/asserts_test.py", "chex/_src/dataclass_test.py"),
            ("absl-py", "cloudpickle", "dm-tree", "toolz")),
    Library("rlax", ("rlax/_src",), ("absl-py", "chex", "distrax", "dm-env")),
    Library("mctx", ("mctx/_src/tests",), ("absl-py", "chex")),
    Library("distrax", ("distrax/_src/distributions", "distrax/_src/utils"),
            ("absl-py", "chex", "tensorflow-probability"), "hmm or importance or transformations"),
    Library("equinox", ("tests/test_while_loop.py", "tests/test_scan.py", "tests/test_noinline.py"),
            ("beartype",)),
    Library("lineax", ("tests/test_solve.py", "tests/test_norm.py", "tests/test_lsmr.py"),
            ("equinox", "beartype")),
    Library("optimistix", ("tests",), ("equinox", "lineax", "beartype", "pytest-benchmark")),
    Library("diffrax", ("test",), ("equinox", "lineax", "optimistix", "scipy"),
            "event or interpolation or root_finder", 1200),
    Library("jaxopt", ("tests",), ("scikit-learn", "optax"), "gradient or armijo or bisection"),
    Library("blackjax", ("tests",), ("chex", "optax", "fastprogress"), "smc or trajectory", 1200),
    Library("tinygp", ("src/tinygp", "tests"), ("equinox",)),
    Library("numpyro", ("test/infer", "test/test_distributions_util.py"), ("funsor",),
            "util or scan", 1200),
    Library("dm-haiku", ("haiku/_src/recurrent_test.py", "haiku/_src/stateful_test.py",
                         "haiku/_src/layer_stack_test.py"), ("absl-py", "chex", "dm-tree")),
    Library("quax", ("tests/unit", "tests/usage"), ("equinox", "beartype")),
    Library("flax", ("tests/nnx", "tests/linen/linen_recurrent_test.py"), ("optax",),
            "recurrent or transforms or scan"),
    Library("jraph", ("jraph/_src",), ("absl-py",)),
    Library("dynamax", ("dynamax/hidden_markov_model", "dynamax/linear_gaussian_ssm"), ("flax",)),
    Library("evosax", ("tests/test_core", "tests/test_algorithms"), ("flax",)),
    Library("gymnax", ("tests/bsuite", "tests/misc", "tests/wrappers"), ("gymnasium",)),
)  # fmt: skip
