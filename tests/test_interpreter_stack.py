"""Room on the interpreter's stack, no garbage collection, and nothing else changes."""

import gc
import inspect

import pytest

from jaxpr_opt.bridge.interpreter_stack import uncollected, with_large_frame


def test_calls_as_before():
    @with_large_frame
    def fun(a, /, b, *rest, c=3, **others):
        """Of a, b and others."""
        return a, b, rest, c, others

    assert fun(1, 2, 4, c=5, d=6) == (1, 2, (4,), 5, {"d": 6})
    assert fun.__doc__ == "Of a, b and others."
    assert list(inspect.signature(fun).parameters) == ["a", "b", "rest", "c", "others"]


def test_nests_and_recurs():
    @with_large_frame
    def count(n):
        return 0 if n == 0 else 1 + count(n - 1)

    assert count(100) == 100


def test_errors_pass():
    @with_large_frame
    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()


def test_garbage_is_not_looked_for_meanwhile():
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_that_nobody_wants_looked_for():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_garbage_is_looked_for_after_an_error():
    with pytest.raises(ValueError, match="no"), uncollected():
        raise ValueError("no")
    assert gc.isenabled()
