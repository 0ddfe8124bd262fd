"""The harness of the benchmarks: what it measures, and that it hides nothing."""

import io

import jax.numpy as jnp
import pytest
from rich.console import Console

from bench import bounded_while, carried_arrays, harness, report, sweep
from bench.harness import Program, Row, growth, measure
from bench.limits import above_plain
from bench.pipeline_share import normalised
from tests.sets import some


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


def test_programs_of_several_answers_are_compared_with_their_own():
    def of_size(name, n, offset):
        function = lambda x: x + offset
        arguments = (jnp.ones(n),)
        return Program(
            name=name, make=lambda: function, arguments=arguments, group="g", size=n, answer=n
        )

    programs = [of_size("a", 2, 0), of_size("b", 2, 0), of_size("a", 4, 0), of_size("b", 4, 1)]
    rows = measure(programs, rounds=1)
    assert [report.is_wrong(row) for row in rows] == [False, False, False, True]


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


def test_a_summary_sets_programs_in_proportion_at_the_largest_size():
    rows = [
        Row(name=name, group="sums", size=n, seconds=factor * n * 1e-3, temp_bytes=factor * n)
        for name, factor in (("plain", 3), ("by hand", 2))
        for n in (8, 64)
    ]
    rows.append(Row(name="peer", group="sums", size=64, note="not installed"))
    file = io.StringIO()
    report.show_summary(Console(file=file, width=140), "title", rows, "by hand")
    lines = file.getvalue().splitlines()
    plain = next(line for line in lines if "plain" in line)
    assert plain.replace("│", " ").split()[:6] == ["sums", "plain", "64", "192", "n^1.00", "1.50"]
    peer = next(line for line in lines if "│ peer" in line)
    assert peer.replace("│", " ").split() == ["peer", "-", "-"]
    assert lines[-1] == "- sums: peer at 64: not installed"


def _row(name, size=8, seconds=1.0, temp_bytes=10**6):
    return Row(name=name, group="g", size=size, seconds=seconds, temp_bytes=temp_bytes)


def test_programs_above_plain_jax_are_reported():
    plain = [_row("plain JAX, nested"), _row("plain JAX, nested", size=64, temp_bytes=10**8)]
    assert not [*above_plain([*plain, _row("jaxpr-opt, nested", seconds=1.04)])]
    assert not [*above_plain([*plain, _row("equinox", seconds=9)])]
    (line,) = above_plain([*plain, _row("jaxpr-opt inside grad, nested", temp_bytes=1_030_000)])
    assert line == (
        "g: jaxpr-opt inside grad, nested at 8: 1,030,000 temporary bytes, plain JAX 1,000,000"
    )
    (line,) = above_plain([*plain, _row("jaxpr-opt, nested", seconds=1.06)])
    assert line == "g: jaxpr-opt, nested at 8: 1.06e+03 ms, plain JAX 1e+03 ms"


def test_a_sweep_above_plain_jax_says_so(monkeypatch):
    rows = [_row("plain JAX"), _row("jaxpr-opt", temp_bytes=2 * 10**6)]
    monkeypatch.setattr(sweep, "measure", lambda *_, **__: rows)
    file, program = io.StringIO(), _program("plain JAX", lambda x: x, jnp.ones(1))
    options = sweep.Options(only="plain", quick=True, rounds=1, above=[])
    sweep.sweep("name", [program], options, Console(file=file, width=140))
    assert "above plain JAX: g: jaxpr-opt at 8: 2,000,000 temporary" in file.getvalue()
    assert len(options.above) == 1


@pytest.mark.parametrize("family", some(carried_arrays.FAMILIES), ids=lambda family: family.name)
def test_programs_with_carried_arrays_and_their_forms_by_hand_agree(family):
    """At a small size, as differentiated in the benchmark, optimised or not."""
    size = min(64, family.largest // 8)
    arguments = family.arguments(size)
    rows = measure(
        [Program(name=n, make=make, arguments=arguments) for n, make in family.candidates()],
        rounds=1,
    )
    assert {"plain JAX", carried_arrays.HAND, "jaxpr-opt"} <= {row.name for row in rows}
    assert [(row.name, row.error) for row in rows if report.is_wrong(row)] == []
    assert [row.note for row in rows if "equinox" not in row.name and row.note] == []


def test_carried_arrays_grow_over_three_doublings():
    for family in carried_arrays.FAMILIES:
        for quick in (False, True):
            sizes = family.sizes(quick)
            assert sizes == sorted(sizes)
            assert sizes[-1] == 8 * sizes[0]


def test_hlo_is_compared_up_to_names_and_metadata():
    one = 'HloModule jit_a\n  %x.1 = f32[] add(%y, %y), metadata={op_name="a" source_line=1}\n'
    two = "HloModule jit_b\n  %add.7 = f32[] add(%p.2, %p.2)\n"
    assert normalised(one) == normalised(two)
    assert normalised(one) != normalised(two.replace("add(%p.2, %p.2)", "add(%p.2, %add.7)"))
