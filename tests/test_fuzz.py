"""The generator of `make fuzz`: its evaluator agrees with JAX, and it finds what is broken."""

import contextlib
import dataclasses
import functools
import random
import runpy
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fuzz import __main__ as commands
from fuzz import (
    broken,
    check,
    corpus,
    finds,
    lanes,
    masks,
    mutations,
    programs,
    saved,
    shrink,
    sizes,
    transformed,
)
from fuzz.derive import TRANSFORMATIONS, derived
from fuzz.epoch import Epoch
from fuzz.evaluate import EndlessError, Evaluator
from fuzz.mutations import effects
from fuzz.source import source
from jaxpr_opt.analysis.residuals import adjacent_step_stacks
from jaxpr_opt.analysis.residuals.stack_consumers import Rows
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.engine import registry
from jaxpr_opt.ir.graph import Cond
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.verify import verify
from jaxpr_opt.passes.residuals.share_shifted_stacks import ShareShiftedStacks

X = np.linspace(-1.5, 2.0, 12, dtype=np.float32).reshape(4, 3)


def test_what_is_said_may_be_rounded_as_results_may():
    """By passes that say so; another number, or one more, is a find all the same."""
    said, rounded = [0.0, 34.94121], [0.0, 34.94117]
    assert check.difference([], said, [], rounded, lenient=False, rounds=True) is None
    for repeated, rounds in ((rounded, False), ([0.0, 35.0], True), ([34.94121], True)):
        found = check.difference([], said, [], repeated, lenient=False, rounds=rounds)
        assert found is not None and found.startswith("said")


def everything(x, i):
    """Most of what the evaluator knows."""
    windows = x.at[i].set(x[0]), x.at[i].add(1.0, mode="drop"), x.at[i].get(mode="fill")
    slices = lax.dynamic_slice(x, (i, 1), (2, 2)), lax.dynamic_update_slice(x, x[:2], (i, i))
    sums = x.sum(0), x.max(1), x @ x.T, jnp.cumsum(x, 1), x.argmax(0), (x > 0).all(), x.prod()
    shapes = x[::-1, ::2], jnp.pad(x, 1), jnp.concatenate([x, x], 1), x.T, jnp.arange(3) // i
    point = jnp.tanh(x), x % 0.7, x.astype(jnp.int8), jnp.where(x > 0, x, -1), jnp.sign(x), x**3
    loops = (
        lax.scan(lambda c, r: (c * r, c + i), x[0], x, reverse=True),
        lax.fori_loop(0, i, lambda k, y: lax.cond(k % 2 == 0, jnp.sin, jnp.cos, y), x),
    )
    return windows, slices, sums, shapes, point, loops


@pytest.mark.parametrize("i", [1, -1, 7])
def test_numpy_agrees_with_jax(i):
    args = X, np.int32(i)
    graph = import_jaxpr(jax.make_jaxpr(everything)(*args), "final")
    with np.errstate(all="ignore"):
        made = Evaluator(graph)(args)
    for ours, theirs in zip(made, jax.tree.leaves(jax.jit(everything)(*args)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_what_is_said(is_ordered):
    """The order of what callbacks say counts only if they say so; how often always does."""

    def program(x, twice=False, back=False):
        say = effects.heard if is_ordered else effects.overheard
        for number in (x + 1, x) if back else (x, x + 1, *[x] * twice):
            jax.debug.callback(say, number, ordered=is_ordered)

    def heard(**how):
        graph = import_jaxpr(jax.make_jaxpr(functools.partial(program, **how))(1.0), "final")
        return check.heard(Evaluator(graph), [np.float32(2)])[1]

    assert (heard() == heard(back=True)) is not is_ordered
    assert heard() != heard(twice=True)


def test_a_loop_that_does_not_end():
    graph = import_jaxpr(jax.make_jaxpr(lambda x: lax.while_loop(lambda c: True, jnp.sin, x))(1.0))
    with pytest.raises(EndlessError):
        Evaluator(graph)([np.float32(1)])


def before_and_after(x):
    """A loop of which two stacks are one, and a loop back that reads both."""

    def step(c, _):
        s = jnp.sin(c)
        return s, (c, s)

    last, rows = lax.scan(step, x, length=4)
    return lax.scan(lambda d, r: (d * r[0] + r[1], None), last, rows, reverse=True)[0]


def on_devices(x):
    """Most of what devices exchange."""
    y = lax.psum(x, "i") * lax.axis_index("i") + lax.pmax(x, "i") - lax.pmin(x, "i")
    z = lax.ppermute(y, "i", [(0, 1), (1, 0)]) + lax.all_gather(y, "i").sum(0)
    step = lambda k, c: lax.cond(lax.psum(k, "i") > 2, programs.hidden, jnp.sin, c)
    return lax.fori_loop(0, 3, step, z), lax.all_to_all(x[:2], "i", 0, 0)


def test_devices_in_step_agree_with_jax():
    rows = np.stack([X, X[::-1] * 2])
    graph = import_jaxpr(jax.make_jaxpr(on_devices, axis_env=[("i", 2)])(X))
    wanted = jax.vmap(on_devices, axis_name="i")(rows)
    for ours, theirs in zip(lanes.Lanes(graph)([rows]), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_device_that_waits_for_another():
    """One takes the branch in which they meet, the other does not."""
    meet = lambda x: lax.cond(x > 0, lambda: lax.psum(x, "i"), lambda: x)
    graph = import_jaxpr(jax.make_jaxpr(meet, axis_env=[("i", 2)])(1.0))
    assert list(lanes.Lanes(graph)([np.float32([1, 2])])[0]) == [3, 3]
    with pytest.raises(lanes.DeadlockError):
        lanes.Lanes(graph)([np.float32([1, -1])])


@pytest.mark.parametrize("made", [programs.from_library, programs.from_devices, masks.from_masks])
def test_programs_of_the_library_of_devices_and_masks(made):
    """They run in NumPy, and stay what they are when passes have been at them."""
    for each in made(4, random.Random(1)):
        around = lanes.bound() if each.lanes else contextlib.nullcontext()
        plan = dataclasses.replace(check.whole("final"), lanes=each.lanes)
        draw = check.for_lanes if each.lanes else check.arguments
        with _small(), around:
            outcome = check.check(each.graph, plan, draw(each.graph, np.random.default_rng(0)))
        assert outcome.is_valid, (each.origin, outcome.notes)
        assert outcome.difference is None, (each.origin, outcome.difference.text)


@pytest.mark.parametrize("how", [*dict.fromkeys(transformed.WAYS)])
@pytest.mark.parametrize("inside", [True, False])
def test_transformed(how, inside):
    """Derivatives and batches, optimised, or of an optimised program."""
    way, arrays = transformed.Way(how, inside, 0), np.random.default_rng(0)
    with _small():
        outcome = transformed.check_way(seed().graph, way, arrays)
    assert outcome.is_valid and outcome.difference is None, outcome


def test_nothing_is_derived_from_programs_of_devices():
    """Their axis has no name where JAX would transform them."""
    epoch = object.__new__(Epoch)
    epoch.rng, epoch.pool = random.Random(0), []
    for seed in programs.from_devices(6, epoch.rng):
        assert epoch._derived(seed) is seed


def test_a_wrong_derivative(monkeypatch):
    """The passes do nothing; but the program that is transformed is another one."""
    made = transformed.Program.optimized
    other = jax.make_jaxpr(lambda x: before_and_after(x) * 1.01)(X[0])
    asked = []

    def optimized(jaxpr, *args, **options):
        asked.append(jaxpr)
        return made(other if len(asked) == 1 else jaxpr, *args, **options)

    monkeypatch.setattr(transformed.Program, "optimized", optimized)
    way = transformed.Way("grad", False, 0)
    found = transformed.check_way(seed().graph, way, np.random.default_rng(0)).difference
    assert found is not None and found.kind == "values"


def seed(program=before_and_after, *args):
    graph = import_jaxpr(jax.make_jaxpr(program)(*(args or (X[0],))))
    return corpus.Seed(graph, "here", ShareShiftedStacks())


def test_mutations_are_programs():
    """What is changed at random still has types, and the same changes are made again."""
    rng = random.Random(0)
    parents = [seed(), seed(everything, X, np.int32(1))]
    for number in range(60):
        graph, names = mutations.mutated(rng.choice(parents).graph, random.Random(number))
        verify(graph, types=True)
        again, others = mutations.mutated(parents[0].graph, random.Random(number))
        assert (names == others) or graph is not again


def test_seeds_in_other_dtypes_and_derivatives():
    made = [derived(seed(), random.Random(number)) for number in range(24)]
    ways = {each.origin.split()[0] for each in made if each is not None}
    assert len(ways) >= 6, ways


def test_arrays_of_no_elements_and_of_one():
    """One size in place of another: of arguments, constants, parameters and loops."""
    given = seed(everything, X, np.int32(1)), seed(before_and_after)
    made = [sizes.resized(each, random.Random(n)) for each in given for n in range(4)]
    found = {n for each in made if each for v in each.graph.inputs for n in v.shape}
    assert {0, 1} <= found
    for each in filter(None, made):
        args = check.arguments(each.graph, np.random.default_rng(0))
        with _small():
            outcome = check.check(each.graph, check.whole("final"), args)
        assert outcome.is_valid and outcome.difference is None, (each.origin, outcome)


@pytest.fixture
def broken_pass(monkeypatch):
    """Without its second condition the pass shares stacks with loops that read them forwards."""

    def runs(scan, route):
        return len(route) == 1 and isinstance(route[0], Rows) and find_skip(route[0].scan) is None

    with _small(), monkeypatch.context() as patched:
        patched.setattr(adjacent_step_stacks, "_runs_back", runs)
        yield patched


@pytest.mark.parametrize("number", range(4))
def test_a_broken_condition_is_found_and_saved(number, tmp_path, broken_pass):
    """What is saved goes wrong as long as the pass is broken."""
    epoch = Epoch(number, 0, tmp_path)
    epoch.pool = [seed()]
    for _ in range(500):
        epoch.one()
        if epoch.kinds:
            break
    (path,) = tmp_path.glob("found_*.py")
    assert finds.PASSES not in path.read_text()
    with pytest.raises(AssertionError, match=r"wrong|says"):
        runpy.run_path(str(path))["test_it"]()
    broken_pass.undo()
    runpy.run_path(str(path))["test_it"]()


def backwards(x):
    """What the broken pass gets wrong: stacks are read in the order in which they were made."""
    step = lambda c, _: (jnp.sin(c), (c, jnp.sin(c)))
    last, rows = lax.scan(step, x, length=4, reverse=True)
    return lax.scan(lambda d, r: (d * r[0] + r[1], None), last, rows, reverse=True)[0]


def test_what_is_saved_fails_as_it_is_saved(broken_pass):
    """However small a program that goes wrong could be, the test in its file fails."""
    plan = check.alone(ShareShiftedStacks(), "final", tidied=True)
    find = finds.Find(seed(backwards), plan, check.Difference("values", "wrong"))
    text = finds.smallest(find, lambda _: True)
    assert saved.kind_of_failure(text) == "values" and finds.PASSES not in text
    broken_pass.undo()
    assert saved.kind_of_failure(text) is None
    assert finds.PASSES in finds.smallest(find, lambda _: False)


def test_what_goes_wrong_compiled_is_compiled_again(monkeypatch):
    other = seed(lambda x: before_and_after(x) * 1.01).graph
    find = finds.Find(seed(), check.whole("final"), check.Difference("compiled", "wrong"))
    assert not find.fails_as_saved(find.seed.graph)
    monkeypatch.setattr(check, "run", lambda *_: (other, None))
    assert find.fails_as_saved(find.seed.graph)


@contextlib.contextmanager
def _small():
    from fuzz.eager import eager

    with eager():
        yield


@pytest.mark.parametrize("mutant", broken.MUTANTS, ids=lambda m: m.label)
def test_texts_that_mutants_replace(mutant):
    """They are in the passes as they are now, once; what is made of them is Python."""
    text = (broken.ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.aimed_at in registry.available()
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_shrunk_as_far_as_it_fails():
    """All that is left of a program is what is asked for."""
    graph = shrink.shrunk(seed().graph, lambda g: any(op.name == "sin" for op in g.walk()))
    assert shrink.size(graph) <= (4, 4)


def handed_on(x, i):
    """Loops, a branch and a function that return what they are given."""
    last, rows = lax.scan(lambda c, r: (saved.kept(c), saved.kept(r)), x[0], x)
    array, _ = lax.while_loop(lambda c: c[1] < 3, lambda c: (saved.kept(c[0]), c[1] + 1), (x, i))
    either = lax.cond(i > 0, lambda: saved.kept(x), lambda: jnp.sin(x))
    return last, rows, array, either, jax.jit(saved.kept)(x)


@pytest.mark.parametrize("program", [everything, handed_on])
def test_source_is_the_program(program):
    args = X, np.int32(1)
    graph = saved.graph_of(program, args)
    names = {**vars(saved), "inf": np.inf, "nan": np.nan}
    exec(source(graph), names)
    again = saved.graph_of(names["program"], args)
    loops, written = (
        [(op.name, len(op.operands), len(op.results)) for op in each.walk() if op.regions]
        for each in (graph, again)
    )
    assert loops == written
    assert check.compare(graph, again, check.arguments(graph, np.random.default_rng(0))) is None


def test_an_epoch_aimed_at_a_pass_whose_tests_check_no_program(tmp_path, monkeypatch):
    """Others are aimed at it."""
    each = registry.named("fold-constants")
    files = [corpus.TESTS / f"passes/test_{name}.py" for name in ("fold_constants", "count_steps")]
    monkeypatch.setattr(corpus, "test_files", lambda: files)
    seeds = Epoch(0, 0, tmp_path)._seeds(each)
    assert seeds and {seed.aimed_at for seed in seeds} == {each}


def test_aimed_epochs_in_processes(tmp_path, monkeypatch):
    """They are told of the pass."""
    started = []
    monkeypatch.setattr(sys, "argv", ["fuzz", "--aim", "narrow-reads", "--folder", str(tmp_path)])
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    commands._started("python", 3, commands._arguments())
    (command,) = started
    assert command[command.index("--aim") + 1] == "narrow-reads"


def test_tests_that_cannot_be_collected(tmp_path):
    """They are no tests without programs."""
    file = tmp_path / "test_nothing.py"
    file.write_text("import nothing_by_this_name")
    with pytest.raises(RuntimeError, match="nothing_by_this_name"):
        corpus.from_tests([file])


def test_a_switch_on_a_number_of_no_branch():
    """The last branch is taken, as in XLA."""
    branches = [lambda x: x, lambda x: 2 * x, lambda x: 3 * x]
    graph = import_jaxpr(jax.make_jaxpr(lambda i, x: lax.switch(i, branches, x))(1, 1.0))
    (cond,) = (op for op in graph.walk() if isinstance(op, Cond))
    Rewriter(graph).set_operand(cond, 0, graph.inputs[0])
    made = [Evaluator(graph)([np.int32(i), np.float32(1)])[0] for i in (-1, 0, 1, 7)]
    assert made == [3, 1, 2, 3]


def test_a_number_of_python_in_a_derived_loop():
    """JAX returns constants as numbers of Python."""
    around, _ = TRANSFORMATIONS["scan"](lambda x: [x, 2], [jax.typeof(X)], random.Random(0))
    assert jax.tree.leaves(around(X))[1].shape == (3,)


def test_what_cannot_be_compiled_is_not_compared():
    plan = check.alone(registry.named("simplify"), "final", tidied=False)
    graph = import_jaxpr(jax.make_jaxpr(saved.kept)(X))
    assert check.compiled(graph, plan, [[X]]) is None


def test_a_case_that_a_select_does_not_have():
    """JAX takes the last one, but its gradient is that of none: it is not compared."""
    graph = import_jaxpr(jax.make_jaxpr(lambda k: lax.select_n(k, 1, 2, 3))(1))
    assert Evaluator(graph)([np.int32(7)])[0] == 3
    with transformed._cases_in_range(), pytest.raises(ValueError, match="does not have"):
        Evaluator(graph)([np.int32(7)])


def says_a_predicate(k, b):
    """JAX takes both branches of a batch, in one of which the predicate is known."""

    def yes(b):
        jax.debug.callback(effects.heard, k[0] > 0, ordered=True)
        return jnp.sin(b)

    return lax.cond(k[0] > 0, yes, lambda b: b, b)


def test_a_callback_in_a_branch_of_a_batch():
    types = np.zeros(3, np.int32), X[0]
    graph = import_jaxpr(jax.make_jaxpr(says_a_predicate)(*types))
    ways = (transformed.Way("vmap of grad", False, number) for number in range(6))
    with _small():
        made = [transformed.check_way(graph, way, np.random.default_rng(0)) for way in ways]
    assert not any(outcome.difference for outcome in made)


def test_what_is_infinite_because_of_what_is_unspecified():
    """It may be anything else that is not finite."""

    def program(x, y):
        return x + saved.undefined(x.shape, "float32") * 0, y

    graph = import_jaxpr(jax.make_jaxpr(program)(X, X))
    assert check.is_lenient(graph)


def test_a_program_that_compares_what_is_unspecified():
    """Two unspecified arrays need not be equal: what comes of it may be anything."""

    def program(x):
        a, b = (saved.undefined(x.shape, "float32") for _ in range(2))
        return jnp.where(a == b, x, 0.0)

    before, after = (import_jaxpr(jax.make_jaxpr(f)(X)) for f in (program, jnp.zeros_like))
    outcome = check.Outcome()
    assert check.confirmed(before, after, [X], outcome) is None
    assert not outcome.is_valid


def test_a_loop_that_may_not_end_on_devices_is_too_large():
    """Also one that an op has in a parameter: JAX runs it, not NumPy."""

    def solved(x):
        body = lambda _, r: lax.while_loop(lambda r: jnp.all(r < 9), lambda r: 2 * r, r)
        return lax.custom_linear_solve(lambda x: 2 * x, x, body, symmetric=True)

    spec = jax.sharding.PartitionSpec("i")
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    on_devices = jax.shard_map(solved, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    assert seed(solved).size < corpus.LARGEST <= seed(on_devices).size
