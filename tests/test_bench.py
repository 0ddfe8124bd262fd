"""The harness of the benchmarks: what it measures, and that it hides nothing."""

import jax.numpy as jnp
import pytest

from bench import bounded_while, harness, report
from bench.harness import Program, Row, growth, measure
from bench.pipeline_share import normalised


def _program(name, function, *arguments, size=0):
    return Program(name=name, make=lambda: function, arguments=arguments, size=size)


def test_a_row_for_every_program_with_time_memory_and_setup():
    x = jnp.ones(1000)
    rows = measure([_program("a", lambda x: x + 1, x), _program("b", lambda x: 1 + x, x)], rounds=2)
    assert [row.name for row in rows] == ["a", "b"]
    for row in rows:
        assert row.seconds > 0
        assert row.temp_bytes is not None
        assert row.setup_seconds > 0
        assert not report.is_wrong(row)
        assert not row.note


def test_a_program_that_disagrees_is_called_wrong():
    x = jnp.ones(3)
    rows = measure([_program("a", lambda x: x, x), _program("b", lambda x: x + 1, x)], rounds=1)
    assert [report.is_wrong(row) for row in rows] == [False, True]


def test_nan_is_wrong():
    x = jnp.zeros(3)
    rows = measure([_program("a", lambda x: x, x), _program("b", lambda x: x / x, x)], rounds=1)
    assert report.is_wrong(rows[1])


def test_a_missing_peer_says_so():
    def make():
        harness.optional("no_such_module", "no-such-package")

    (row,) = measure([Program(name="peer", make=make, arguments=())], rounds=1)
    assert row.seconds is None
    assert row.note.startswith("not installed: pip install no-such-package")


def test_a_peer_that_fails_says_so():
    def fails(x):
        raise ValueError("no such luck")

    (row,) = measure([_program("peer", fails, jnp.ones(1))], rounds=1)
    assert row.note == "failed: ValueError: no such luck"


def test_a_program_that_is_too_big_is_not_run(monkeypatch):
    monkeypatch.setattr(harness, "MEMORY_LIMIT", 1)
    x = jnp.ones((100, 100))
    (row,) = measure([_program("big", lambda x: (x @ x) @ (x @ x).T, x)], rounds=1)
    assert row.temp_bytes > 1
    assert row.seconds is None
    assert row.note.startswith("not run: needs")


def test_larger_programs_are_not_tried_once_compiling_is_slow(monkeypatch):
    monkeypatch.setattr(harness, "SETUP_LIMIT", 0.0)
    programs = [_program("slow", lambda x: x, jnp.ones(1), size=size) for size in (8, 16)]
    small, large = measure(programs, rounds=1)
    assert small.seconds is not None
    assert large.note.startswith("skipped: compiling took")


@pytest.mark.parametrize("exponent", [0, 1, 2])
def test_growth_is_fitted_over_three_doublings(exponent):
    rows = [Row(name="", group="", size=n, seconds=n**exponent) for n in (8, 16, 32, 64)]
    assert growth(rows, lambda row: row.seconds) == pytest.approx(exponent, abs=1e-9)
    assert growth(rows[1:], lambda row: row.seconds) is None


def test_growth_looks_at_the_largest_sizes():
    rows = [Row(name="", group="", size=n, seconds=max(64, n)) for n in (8, 16, 32, 64, 128, 512)]
    assert growth(rows, lambda row: row.seconds) == pytest.approx(1)


def test_every_candidate_of_the_issue_is_in_the_table_at_every_bound():
    programs = bounded_while.programs(quick=False)
    names = {p.name for p in programs}
    for peer in ("plain JAX", "jax.checkpoint", "Enzyme-JAX", "jaxpr-opt", "jaxpr-opt inside grad"):
        assert {f"{peer}, nested", f"{peer}, single"} <= names
    assert {"equinox, checkpointed", "equinox, bounded", bounded_while.HAND} <= names
    sizes = [p.size for p in programs if (p.name, p.group) == ("plain JAX, nested", "batch 256")]
    assert sizes == bounded_while.BOUNDS


def test_hlo_is_compared_up_to_names_and_metadata():
    one = 'HloModule jit_a\n  %x.1 = f32[] add(%y, %y), metadata={op_name="a" source_line=1}\n'
    two = "HloModule jit_b\n  %add.7 = f32[] add(%p.2, %p.2)\n"
    assert normalised(one) == normalised(two)
    assert normalised(one) != normalised(two.replace("add(%p.2, %p.2)", "add(%p.2, %add.7)"))
