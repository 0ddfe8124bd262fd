"""Which ops devices may wait for each other in, and which predicates they are known to share."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import using
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.insight.journal import collect_journals
from jaxpr_opt.ir.devices import (
    has_divided_rows,
    is_manual,
    is_partly_manual,
    is_replicated,
    is_sharded,
)
from jaxpr_opt.ir.graph import Cond, Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.traits import can_move, communicates
from jaxpr_opt.passes import RESIDUALS
from jaxpr_opt.passes.push_remat_into_branches import PushRematIntoBranches
from jaxpr_opt.passes.residuals.replay_inner_loops import ReplayInnerLoops
from jaxpr_opt.passes.residuals.replay_steps import ReplaySteps
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly
from jaxpr_opt.passes.steps.isolate_skipped_steps import IsolateSkippedSteps
from jaxpr_opt.testing import check_refuses, run_alone, traced
from tests.prices import Replaying

ROWS, COLUMNS = PartitionSpec("x"), PartitionSpec(None, "y")
COLUMNS_X = PartitionSpec(None, "x")


def on_devices(fun, *, manual="x", y=2, check=False, specs=ROWS, out=ROWS):
    """`fun` in a `shard_map` over some axes of a mesh of 4 by `y` devices."""
    mesh = AbstractMesh((4, y), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    specs = {"in_specs": specs, "out_specs": out, "check_vma": check}
    return jax.shard_map(fun, mesh=mesh, axis_names=set(manual), **specs)


def ops(fun, *types, name):
    """The ops of that name in a program."""
    return [op for op in import_jaxpr(traced(fun, *types)).walk() if op.name == name]


def hidden(inner, kind):
    """`inner` behind a custom rule, which stays one opaque op until the final phase."""
    if kind == "custom_vmap":
        made = jax.custom_batching.custom_vmap(inner)
        made.def_vmap(lambda _, batched, v: (inner(v), batched[0]))
    elif kind == "custom_vjp":
        made = jax.custom_vjp(inner)
        made.defvjp(lambda v: (inner(v), None), lambda _, ct: (ct,))
    elif kind == "custom_jvp":
        made = jax.custom_jvp(inner)
        made.defjvp(lambda p, t: (inner(*p), *t))
    else:
        made = hidden(hidden(inner, "custom_jvp"), "custom_vjp")
    return made


sums = functools.partial(lax.psum, axis_name="x")


def looped(v):
    return lax.fori_loop(0, 3, lambda _, c: sums(c), v)


@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp", "custom_vmap", "nested"])
@pytest.mark.parametrize(("inner", "found"), [(sums, True), (looped, True), (jnp.sin, False)])
def test_collectives_in_opaque_ops(kind, inner, found):
    name = {"custom_vmap": "custom_vmap_call", "custom_jvp": "custom_jvp_call"}
    (op,) = ops(
        on_devices(hidden(inner, kind), manual="xy"),
        "f32[8]",
        name=name.get(kind, "custom_vjp_call"),
    )
    assert communicates(op) is found
    assert can_move(op) is not found


def test_what_cannot_be_looked_into_may_communicate_where_several_devices_run_it():
    call = lambda x: jax.ffi.ffi_call("unknown", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    (alone_,) = ops(call, "f32[8]", name="ffi_call")
    assert not communicates(alone_)
    (mapped,) = ops(on_devices(call), "f32[8]", name="ffi_call")
    assert communicates(mapped)
    (known,) = ops(on_devices(jnp.linalg.eigh), "f32[8,2,2]", name="eigh")
    assert not communicates(known)


def test_manual_axes():
    """An axis of one device does not matter; in a nest of `shard_map`s axes add up."""
    nested = jax.shard_map(jnp.sin, in_specs=COLUMNS, out_specs=COLUMNS)
    for fun, manual, partly in (
        (jnp.sin, False, False),
        (on_devices(jnp.sin), True, True),
        (on_devices(jnp.sin, y=1), True, False),
        (on_devices(jnp.sin, manual="xy"), True, False),
        (on_devices(nested), True, False),
    ):
        (op,) = ops(fun, "f32[8,2]", name="sin")
        assert (is_manual(op), is_partly_manual(op)) == (manual, partly)


def test_predicates_that_all_devices_share():
    """Only where every `shard_map` around tracks over which axes values vary."""
    for check in (True, False):
        (op,) = ops(on_devices(lambda x: jnp.sin(sums(x)) + x, check=check), "f32[8]", name="sin")
        assert is_replicated(op.result, op) is check
        (op,) = ops(on_devices(jnp.sin, check=check), "f32[8]", name="sin")
        assert not is_replicated(op.result, op)
        inner = lambda x: jnp.sin(lax.psum(x, ("x", "y") if check else "y")) + x  # noqa: B023
        nested = jax.shard_map(inner, in_specs=COLUMNS, out_specs=COLUMNS, axis_names={"y"})
        (op,) = ops(on_devices(nested, check=check), "f32[8,2]", name="sin")
        assert is_replicated(op.result, op) is check


def test_arrays_of_which_each_device_has_a_part_or_an_addend():
    """A type may say so beside the axes it divides: JAX then refuses to list those."""
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Explicit,))
    for spec, expected in (
        (PartitionSpec(), False),
        (PartitionSpec(None, "x"), True),
        (PartitionSpec(reduced={"x"}), True),
        (PartitionSpec(unreduced={"x"}), True),
    ):
        x = jax.ShapeDtypeStruct((4, 4), "float32", sharding=NamedSharding(mesh, spec))
        with jax.sharding.use_abstract_mesh(mesh):
            (op,) = ops(lambda x: lax.slice(x, (0, 0), (3, 4)), x, name="slice")
        assert is_sharded(op.operands[0]) is expected
        assert has_divided_rows(op.operands[0], op) is expected


# ------------------------------------------------- passes that make ops depend on a predicate


def stopping(bound):
    """A loop that stops for good, with steps in which XLA may insert a collective."""

    def run(c):
        stop = bound(c)
        step = lambda c, t: (jnp.where(t < stop, jnp.roll(c, 1, axis=1), c), None)
        return lax.scan(step, c, lax.iota(jnp.int32, 5))[0]

    return run


def varies(c):
    return jnp.max(c).astype(jnp.int32)


SIZES = "f32[8,2048]"


def expect(each, program, types, fires, because):
    """The pass fires, or says why not.  Numbers are compared on real devices, in tests/sharding."""
    if not fires:
        check_refuses(each, program, types, because=because)
        return
    graph = import_jaxpr(traced(program, types), each.phase)
    assert run_alone((each,), graph).record(each.name, each.cleanup).rewrites


@pytest.mark.parametrize(
    ("options", "fires"),
    [({}, False), ({"y": 1}, True), ({"manual": "xy"}, True)],
)
def test_exit_loop_early(options, fires):
    """XLA rolls along the axis that is not manual by a collective in each step."""
    program = on_devices(stopping(varies), **options)
    expect(ExitLoopEarly(), program, SIZES, fires, "every device must run it")


@pytest.mark.parametrize(("hides", "fires"), [(sums, False), (jnp.sin, True)])
def test_isolate_skipped_steps_with_opaque_ops(hides, fires):
    program = on_devices(batched(hidden(hides, "custom_vjp")), manual="xy")
    expect(IsolateSkippedSteps(), program, SIZES, fires, "a step has effects or communicates")


def test_isolate_skipped_steps():
    program = on_devices(batched(jnp.sin))
    expect(IsolateSkippedSteps(), program, SIZES, False, "XLA may insert collectives into a step")


def batched(inner):
    """A loop over a batch that hands what it computes to a loop back."""

    def run(c):
        xs = jnp.stack([c] * 5)

        def body(c, x):
            p = x > 1
            return jnp.where(p, inner(c), c), (jnp.cos(c) * x, p)

        c, rows = lax.scan(body, c, xs)
        back = lambda a, row: (jnp.where(row[1], a * row[0], a), None)
        return lax.scan(back, c, rows, reverse=True)[0]

    return run


@pytest.mark.parametrize(("options", "fires"), [({}, False), ({"manual": "xy"}, True)])
def test_push_remat_into_branches(options, fires):
    """What is beside the cond would run on some devices only."""

    @jax.checkpoint
    def run(x):
        y = lax.rev(x, (1,))
        small = lax.index_in_dim(y, 0)[0, 0] < 3
        return lax.cond(small, lambda: jnp.sin(y), lambda: x) + 1

    class Finally(PushRematIntoBranches):
        phase = "final"  # it is not differentiated

    program = on_devices(run, **options)
    expect(Finally(), program, SIZES, fires, "every device must run")


@pytest.mark.parametrize(("manual", "home"), [("xy", Cond), ("x", Scan)])
def test_where_a_step_is_replayed(manual, home):
    """In the branch that reads it; in the step, if XLA may let devices communicate in it."""

    def loss(c):
        def body(c, _):
            return lax.cond(c[0, 0] < 3, lambda: jnp.sin(jnp.sin(c)) * c, lambda: c), None

        return jnp.sum(lax.scan(body, c, length=64)[0])

    jaxpr = traced(on_devices(jax.grad(loss), manual=manual), "f32[64,64]")
    with using(Replaying()):
        result = resolve(None).run(jaxpr)
    assert result.journal.record("replay-steps", False).rewrites
    back = next(op for op in import_jaxpr(result.jaxpr).walk() if _is_reverse(op))
    replayed = [op for op in back.walk() if op.name == "sin"]
    assert replayed
    assert all(isinstance(op.parent, home) for op in replayed)


@pytest.mark.parametrize(
    ("manual", "shift", "fires"), [("xy", 1, True), ("x", 1, False), ("x", 0, True)]
)
def test_what_is_replayed_where_arrays_are_divided(manual, shift, fires):
    """XLA may roll by a collective: it runs once, in the step that stores its result."""

    def made(state):
        c, n = state
        return jnp.sin(jnp.sin(jnp.roll(c, 1, 1) if shift else c)) * c, n + 1

    def loss(c):
        body = lambda state, _: (lax.cond(state[1] < 3, made, lambda s: s, state), None)
        return jnp.sum(lax.scan(body, (c, 0), length=64)[0][0])

    graph = import_jaxpr(traced(on_devices(jax.grad(loss), manual=manual), "f32[64,64]"))
    with using(Replaying()):
        run_alone(RESIDUALS, graph)
        record = run_alone((ReplaySteps(),), graph).record("replay-steps", False)
    assert bool(record.rewrites) == fires
    reasons = [each.reason for each in record.refusals]
    assert fires or any("XLA may insert a collective into" in each for each in reasons)


@pytest.mark.parametrize(("manual", "fires"), [("xy", True), ("x", False)])
def test_what_runs_again_where_arrays_are_divided(manual, fires):
    """XLA may add a collective to a step of an inner loop."""

    def loss(c):
        made = lambda s: (jnp.sin(jnp.sin(jnp.roll(s[0], 1, 1))) * s[0], s[1] + 1)
        body = lambda s, _: (lax.cond(s[1] < 3, made, lambda s: s, s), None)
        step = lambda c, _: (lax.scan(body, (c, c[0, 0]), length=256)[0][0], None)
        return jnp.sum(lax.scan(step, c, length=3)[0])

    graph = import_jaxpr(traced(on_devices(jax.grad(loss), manual=manual), "f32[64,64]"))
    run_alone(RESIDUALS, graph)
    record = run_alone((ReplayInnerLoops(),), graph).record("replay-inner-loops", False)
    assert bool(record.rewrites) == fires
    reasons = [each.reason for each in record.refusals]
    assert fires or any("XLA may insert a collective into" in each for each in reasons)


def _is_reverse(op):
    return isinstance(op, Scan) and op.reverse


# ------------------------------------------------- arrays that XLA may divide over devices


def written(b, xs):
    """A row of a buffer is read and written in each step."""

    def step(b, row):
        i, x = row
        old = lax.dynamic_index_in_dim(b, i, keepdims=False)
        return lax.dynamic_update_index_in_dim(b, jnp.sin(old) + x, i, 0), None

    return lax.scan(step, b, (jnp.arange(xs.shape[0]), xs))[0]


WRITTEN = traced(written, "f32[8,2]", "f32[8,2]")


def fired(jaxpr, **options):
    """The passes that change a program in the final phase, but those that tidy up."""
    journal = resolve(None).run(jaxpr, "final", **options).journal
    return {name for name, each in journal.records.items() if each.rewrites and not each.cleanup}


def test_windows_of_arrays_that_may_be_divided():
    """A row of an array whose rows are on several devices is not where it is wanted."""
    assert "stack-carried-updates" in fired(WRITTEN, divided=False)
    assert not fired(WRITTEN, divided=True)
    lone = on_devices(written, manual="xy", specs=(COLUMNS_X, COLUMNS_X), out=COLUMNS_X)
    assert "stack-carried-updates" in fired(traced(lone, "f32[8,8]", "f32[8,8]"), divided=True)
    partly = on_devices(written, specs=(COLUMNS_X, COLUMNS_X), out=COLUMNS_X)
    jaxpr = traced(partly, "f32[8,8]", "f32[8,8]")
    assert "stack-carried-updates" not in fired(jaxpr, divided=False)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("made", [lambda x, t: 2 * x, lambda x, t: (t, 1 - t)])
def test_residuals_of_arrays_that_may_be_divided(made, divided):
    """A stream that another loop reads would be gathered for that, too."""

    def program(c, xs, ct):
        def step(c, x):
            t = jnp.tanh(c + x)
            return t, made(x, t)

        def back(g, r):
            return sum(jax.tree.leaves(r), g * 0.5), None

        c, r = lax.scan(step, c, xs)
        return c, lax.scan(back, ct, r, reverse=True)[0]

    found = fired(traced(program, "f32[3]", "f32[8,3]", "f32[3]"), divided=divided)
    assert ("narrow-residuals" in found) is not divided


def test_the_reason_is_reported():
    with collect_journals() as journals:
        resolve(None).run(WRITTEN, "final", divided=True)
    refusals = [
        r.reason for j in journals for r in j.record("stack-carried-updates", False).refusals
    ]
    assert any("XLA may divide the array over devices" in reason for reason in refusals)


def test_a_program_that_turns_out_not_to_be_divided():
    """What was left alone while it might have been is done when it is lowered for one device."""
    pipeline = resolve(None)
    jaxpr = pipeline.run(WRITTEN, divided=True).jaxpr
    assert "stack-carried-updates" in fired(jaxpr, divided=False)


@pytest.mark.parametrize("divided", [False, True])
def test_rows_of_a_predicate_that_may_be_divided(divided):
    """Devices would have to ask each other in every step whether some row goes on."""
    alone, batch = traced(stopping(varies), SIZES), traced(batched(jnp.sin), SIZES)
    assert "exit-loop-early" in fired(alone, divided=divided)
    assert ("isolate-skipped-steps" in fired(batch, divided=divided)) is not divided
    rows = traced(jax.vmap(stopping(varies)), "f32[4,8,2048]")
    assert ("exit-loop-early" in fired(rows, divided=divided)) is not divided


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize(("step", "fires"), [(jnp.sin, True), (lambda c: jnp.sin(c @ c), False)])
def test_replaying_a_step_that_may_communicate(step, fires, divided):
    def loss(c):
        def body(c, _):
            return lax.cond(c[0, 0] < 3, lambda: jnp.sin(step(c)) * step(c), lambda: c), None

        return jnp.sum(lax.scan(body, c, length=64)[0])

    found = fired(traced(jax.grad(loss), "f32[16,16]"), divided=divided)
    assert ("replay-steps" in found) is (fires or not divided)


@pytest.mark.parametrize(
    ("axis_type", "size", "divided"),
    [(AxisType.Auto, 4, True), (AxisType.Auto, 1, False), (AxisType.Explicit, 4, False)],
)
def test_what_the_mesh_of_the_context_says(axis_type, size, divided):
    mesh = AbstractMesh((size,), ("x",), axis_types=(axis_type,))
    assert not compat_devices.may_be_divided()  # there is one device
    with jax.sharding.use_abstract_mesh(mesh):
        assert compat_devices.may_be_divided() is divided
