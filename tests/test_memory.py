"""`optimize(memory=...)`: the fastest program that fits, whatever is differentiated where."""

import itertools
import json
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxpr_opt import budget, optimize, settings
from jaxpr_opt.analysis.liveness import rematerialization
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cli.main import main
from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.engine import pipeline
from jaxpr_opt.memory import planner
from jaxpr_opt.memory.budget import Budget, parse_budget
from jaxpr_opt.memory.messages import BudgetError
from jaxpr_opt.memory.planner import collect_plans
from jaxpr_opt.sizes import binary_text_above, parse_bytes
from tests.loops import memory
from tests.passes.test_memory_of_random_loops import random_program

STEPS = 400
W = jnp.linspace(0.1, 0.9, 64 * 64, dtype=jnp.float32).reshape(64, 64)
H = jnp.linspace(-1.0, 1.0, 64 * 64, dtype=jnp.float32).reshape(64, 64)


def loss(w, h):
    """A recurrent net whose steps keep two numbers for each that they carry."""
    step = lambda h, _: (jnp.tanh(h @ w) * jnp.cos(h), None)
    return (lax.scan(step, h, length=STEPS)[0] ** 2).sum()


def assert_close(want, got):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), want, got)


@pytest.fixture(scope="module")
def plain():
    """The gradient as JAX computes it, and the memory that it takes optimised without a budget."""
    return jax.jit(jax.grad(loss))(W, H), memory(optimize(jax.grad(loss)), W, H)


WAYS = {
    "above": lambda given: optimize(jax.grad(loss), memory=given),
    "below": lambda given: jax.jit(jax.grad(optimize(loss, memory=given))),
    "around a jitted loss": lambda given: optimize(jax.grad(jax.jit(loss)), memory=given),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_compiled_program_keeps_to_the_budget(plain, way):
    """An eighth of the memory, and the same gradient."""
    want, without = plain
    fun = WAYS[way](0.125)
    assert memory(fun, W, H) <= 1.1 * 0.125 * without
    assert_close(want, fun(W, H))


def test_prices_between_two_at_which_the_same_is_done_are_not_tried():
    """A search finds the prices at which something else is done."""
    done, asked = "aaaabbbbbbbbbbbbd", set()

    def says(number):
        asked.add(number)
        return [done[number]] if number >= 0 else []

    assert list(planner.changes(says, -1, 16)) == [0, 4, 16]
    assert len(asked) < len(done)


def test_bytes_and_the_least():
    """The least is less than what a generous budget leaves."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        budgets = [memory(optimize(jax.grad(loss), memory=b), W, H) for b in ("3 MiB", "minimal")]
    assert budgets[1] < budgets[0] <= 1.1 * 3 * 2**20


def test_a_budget_that_is_large_enough_buys_what_is_fastest():
    text = lambda **given: optimize(jax.grad(loss), **given).lower(W, H).as_text()
    assert text(memory="1 GiB") == text(memory=1.0) != text(memory=0.5)


def test_a_train_step():
    """The gradient and the update of the weights are one program."""

    def train(w, h):
        value, g = jax.value_and_grad(loss)(w, h)
        return value, w - 0.1 * g

    fitted = optimize(train, memory=0.125)
    assert memory(fitted, W, H) <= 1.1 * 0.125 * memory(optimize(train), W, H)
    assert_close(jax.jit(train)(W, H), fitted(W, H))


def test_a_batch_of_gradients():
    hs = jnp.stack([H, H + 0.1])
    batched = lambda g: jax.vmap(g, (None, 0))
    fitted = optimize(batched(jax.grad(loss)), memory=0.125)
    assert memory(fitted, W, hs) <= 1.1 * 0.125 * memory(optimize(batched(jax.grad(loss))), W, hs)
    assert_close(jax.jit(batched(jax.grad(loss)))(W, hs), fitted(W, hs))
    assert_close(fitted(W, hs), batched(jax.grad(optimize(loss, memory=0.125)))(W, hs))


def frontier(fun, *args):
    with collect_plans() as plans:
        optimize(fun, memory="minimal").lower(*args)
    (plan,) = plans
    return plan.frontier


def frontier_and_results(fun, *args):
    """What a budget may buy, and what is computed in the least memory."""
    with collect_plans() as plans:
        results = optimize(fun, memory="minimal")(*args)
    (plan,) = plans
    return plan.frontier, results


def test_less_memory_never_costs_less():
    """Of what a budget may buy, the smaller program is the slower one, and computes no less."""
    found = frontier(jax.grad(loss), W, H)
    assert len(found) > 2
    for larger, smaller in itertools.pairwise(found):
        assert smaller.nbytes < larger.nbytes
        assert smaller.seconds >= larger.seconds
        assert smaller.flops >= larger.flops


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(0.9, 0.5, 0.25, 0.1, 0.05)])
def test_a_larger_budget_never_costs_more(parts):
    chosen = []
    for part in parts:
        with collect_plans() as plans:
            optimize(jax.grad(loss), memory=part).lower(W, H)
        chosen.append(plans[0].chosen)
    assert [each.seconds for each in chosen] == sorted(each.seconds for each in chosen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_larger_budget_never_costs_more_in_random_programs(seed, monkeypatch):
    """Neither predicted seconds nor operations; loops in random programs, and layers after them."""
    program, arguments = random_program(random.Random(seed))
    plans = []
    real = pipeline.plan
    monkeypatch.setattr(pipeline, "plan", lambda *args: plans.append(real(*args)) or plans[-1])
    # Other tests look at every pass.
    with settings.override(strict=False, verify=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the least may be more
        for part in (0.9, 0.2, 0.02):
            optimize(program, memory=part).lower(*arguments)
    chosen = [plan.chosen for plan in plans]
    assert len(chosen) == 3
    assert [each.seconds for each in chosen] == sorted(each.seconds for each in chosen)
    assert [each.flops for each in chosen] == sorted(each.flops for each in chosen)
    kilobyte = 1024  # by which estimates of so small programs are off
    pairs = itertools.pairwise(chosen)
    assert all(smaller.nbytes <= each.nbytes + kilobyte for each, smaller in pairs)


def gated(w, h):
    """A recurrent net: without a budget each step computes most of what it needs again."""

    def step(state, _):
        h, c = state
        i, f, g, o = jnp.split(h @ w, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    return (lax.scan(step, (h, h), length=1000)[0][0] ** 2).sum()


@pytest.mark.slow
def test_segments_store_what_a_step_would_compute_again():
    """Their residuals stay in the cache: a third of the memory for no more operations."""
    w, h = jnp.tile(W, (1, 4)) / 8, H[:16]
    (today, *others), least = frontier_and_results(jax.grad(gated), w, h)
    assert any(e.nbytes < today.nbytes / 3 and e.flops <= 1.01 * today.flops for e in others)
    want = jax.jit(jax.grad(gated))(w, h)
    assert_close(want, least)
    assert_close(want, optimize(jax.grad(gated), memory=0.5)(w, h))
    assert_close(want, jax.jit(jax.grad(optimize(gated, memory="minimal")))(w, h))


@pytest.mark.parametrize("given", [None, 0.5])
def test_what_a_program_was_made_of_is_kept_for_a_budget_only(monkeypatch, given):
    kept = []
    real = pipeline.mark_optimized
    monkeypatch.setattr(
        pipeline,
        "mark_optimized",
        lambda *a, **k: kept.append(k.get("source")) or real(*a, **k),
    )
    optimize(jax.grad(gated), memory=given).lower(jnp.tile(W, (1, 4)), H)
    assert any(each is not None for each in kept) == (given is not None)


@pytest.mark.slow
def test_nested_loops_are_planned_from_what_they_store():
    """An inner loop over rows in each step; with a budget both may store or compute again."""

    def nested(w, h):
        inner = lambda h, _: (jax.nn.sigmoid(h @ w) * jnp.tanh(h), None)
        step = lambda h, _: (lax.scan(inner, h, length=5)[0] + 0.1 * h, None)
        return (lax.scan(step, h, length=50)[0] ** 2).sum()

    found, least = frontier_and_results(jax.grad(nested), W / 8, H)
    assert len(found) > 1 and found[-1].nbytes < 0.25 * found[0].nbytes
    assert [e.seconds for e in found] == sorted(e.seconds for e in found)
    assert [e.flops for e in found] == sorted(e.flops for e in found)
    want = jax.jit(jax.grad(nested))(W / 8, H)
    assert_close(want, least)
    assert_close(want, optimize(jax.grad(nested), memory=0.5)(W / 8, H))


TALL = jnp.tile(H, (16, 1))


def unrolled(w, h):
    """Layers of straight-line code, each with two arrays for its gradient."""
    for _ in range(24):
        h = jnp.tanh(jnp.cos(h @ w) @ w)
    return (h**2).sum()


def test_straight_line_code_has_many_sizes():
    """From one to the next it is a part, not all that there is to save."""
    found = frontier(jax.grad(unrolled), W, TALL)
    parts = [each.nbytes / found[0].nbytes for each in found]
    assert len(parts) > 5 and parts[-1] < 0.4, parts
    assert all(smaller > 0.5 * larger for larger, smaller in itertools.pairwise(parts)), parts


def test_each_size_of_layers_is_offered(monkeypatch):
    """None is held to take nothing, also where less is dropped than is computed."""
    offered = []
    best = planner._best
    monkeypatch.setattr(planner, "_best", lambda offers: offered.extend(offers) or best(offered))

    def dense(w, h):
        for _ in range(12):
            h = jax.nn.gelu(h @ w)
        return (h**2).mean()

    optimize(jax.grad(dense), memory="minimal").lower(W, TALL)
    sizes = [offer.nbytes for offer in offered]
    assert len(sizes) > 3 and min(sizes) > 0 and len(set(sizes)) == len(sizes), sizes


def gelus(w, h):
    """Layers whose activations are computed from one product each."""
    for _ in range(12):
        h = jax.nn.gelu(h @ w)
    return (h**2).mean()


def mixed(weights, h):
    """Layers that look at one another's rows."""
    for w in weights:
        h = h + jax.nn.softmax(h @ w @ h.T) @ h
    return (h**2).mean()


@pytest.mark.parametrize(("fun", "w"), [(unrolled, W), (gelus, W), (mixed, (W,) * 8)])
def test_a_larger_budget_never_computes_more_of_straight_line_code(fun, w):
    flops = [each.flops for each in frontier(jax.grad(fun), w, jnp.tile(H, (4, 1)))]
    rounded = [float(f"{each:.3g}") for each in flops]  # JAX 0.10 has selects for barriers
    assert len(flops) > 3 and rounded == sorted(rounded), flops


def test_no_product_is_repeated_where_activations_are_enough():
    """An activation and what it is computed of are both dropped: the one does not pay for both."""
    found = frontier(jax.grad(gelus), W, TALL)
    stored = [each for each in found if each.flops < 1.02 * found[0].flops]
    assert stored[-1].nbytes < 0.6 * found[0].nbytes, [each.nbytes for each in found]
    assert found[-1].flops > 1.1 * found[0].flops


def test_memory_that_is_handed_out_anew_takes_time():
    """So where it does, of two programs that both exceed the cache the smaller is the faster."""
    many = frontier(jax.grad(unrolled), W, TALL)
    with using(cost_model().but(cache=1, fresh=1.0)):
        found = frontier(jax.grad(unrolled), W, TALL)
    assert len(found) < len(many)
    assert found[1].nbytes < 0.5 * found[0].nbytes
    assert found[1].seconds == found[0].seconds  # none is held to be faster than what there is


def test_of_what_may_be_dropped_each_is_found_by_its_part():
    """However its part is rounded."""
    found = [rematerialization.Dropping(None, (), n, 78519040, 0.0) for n in range(10**6, 1, -997)]
    for each in found:
        assert rematerialization.within(found, each.nbytes / each.before) is each


def test_little_is_made_to_choose_from(monkeypatch):
    """Of what straight-line code may hold, nothing is rewritten but what a budget takes."""
    made = []
    copy = planner.copy_graph
    monkeypatch.setattr(planner, "copy_graph", lambda graph: made.append(graph) or copy(graph))
    optimize(jax.grad(unrolled), memory=0.5).lower(W, TALL)
    assert 1 <= len(made) <= 2


def test_little_is_looked_for(monkeypatch):
    """What may be dropped is looked for once, though the program is rewritten on a copy; a budget
    that is met takes one estimate of memory, and none of time.
    """
    asked = []

    def count(module, name):
        was = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: asked.append(name) or was(*args))

    count(rematerialization, "shortest")
    count(planner, "temporary_bytes")
    count(planner, "predicted_seconds")
    optimize(jax.grad(unrolled), memory=1.0).lower(W, TALL)
    assert asked == ["temporary_bytes"]
    optimize(jax.grad(unrolled), memory=0.5).lower(W, TALL)
    assert asked.count("shortest") <= 4  # for many bounds, and for small ones; divided again


def test_a_loop_that_is_only_there_when_another_is_computed_again():
    """Its steps are divided, too, where a byte is worth that."""

    def layered(w, xs):
        def layer(xs, w):
            def step(h, x):
                h = jnp.tanh(x @ w[0] + h @ w[1])
                return h, h

            return xs + lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1], None

        return (lax.scan(layer, xs, w)[0] ** 2).sum()

    w, xs = jnp.ones((4, 2, 48, 48)), jnp.ones((64, 16, 48))
    given = jax.random.normal(jax.random.key(0), w.shape) / 8
    (first, *_, least), found = frontier_and_results(jax.grad(layered), given, xs)
    assert least.nbytes < 0.5 * first.nbytes
    wanted = jax.jit(jax.grad(layered))(given, xs)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * float(jnp.abs(wanted).max()))


def test_a_loop_that_stops_early():
    """Without a budget its first steps store; the least memory is that of steps replayed."""

    def bounded(w, h, n):
        step = lambda c: (c[0] + 1, jnp.tanh(jnp.cos(c[1] @ w) @ w))
        body = lambda c, _: (lax.cond(c[0] < n, step, lambda c: c, c), None)
        return lax.scan(body, (0, h), length=1000)[0][1].sum()

    first, *_, least = frontier(jax.grad(bounded), W, TALL, 3)
    plain = 4 * 1000 * TALL.nbytes
    assert least.nbytes < first.nbytes < 0.6 * plain


def test_ten_thousand_steps_at_a_hundredth_of_the_memory():
    """They take no more than 2.3 times the operations of the gradient as it is."""

    def simulated(w, start):
        step = lambda x, _: (x + 0.001 * jnp.sin(jnp.cos(x) * jnp.tanh(w * x)), None)
        return (lax.scan(step, start, length=10_000)[0] ** 2).sum()

    first, *others = frontier(jax.grad(simulated), W[:4], H[:4])
    small = [each for each in others if each.nbytes <= 0.01 * first.nbytes]
    assert small and small[0].flops <= 2.3 * first.flops


def test_a_budget_that_cannot_be_met():
    """One warning says how far it got, and of what the rest is made."""
    says = r"`loss` takes \d+ KiB of .* at least .* memory='1 KiB' allows.*test_memory.py"
    small = lambda: optimize(jax.grad(loss), memory="1 KiB").lower(W, H)
    with settings.override(strict=False), pytest.warns(UserWarning, match=says) as told:
        small()
    assert len(told) == 1
    with settings.override(strict=True), pytest.raises(BudgetError, match=says):
        small()


def test_a_part_of_next_to_nothing():
    """Half of a few bytes is no budget: XLA aligns each buffer to more."""

    def step(w, count):
        rate = 0.1 / jnp.sqrt(count + 1.0)
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w)))(w)
        return w - rate * gradient * jnp.sum(rate), count + 1

    assert Budget(part=0.5).limit(4) == 1024
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimize(step, memory=0.9).lower(jnp.eye(8), 0.0)


def test_who_donates_is_asked_for_a_budget_only(monkeypatch):
    asked = []
    real = compat_devices.donated
    monkeypatch.setattr(compat_devices, "donated", lambda args: asked.append(args) or real(args))
    optimize(loss).lower(W, H)
    assert not asked
    optimize(loss, memory=0.5).lower(W, H)
    assert len(asked) == 1


def test_the_environment(monkeypatch, plain):
    """A program that nobody wants to edit has the budget of the environment."""
    monkeypatch.setenv("JAXPR_OPT_MEMORY", "0.125")
    assert memory(optimize(jax.grad(loss)), W, H) <= 1.1 * 0.125 * plain[1]
    monkeypatch.setenv("JAXPR_OPT_MEMORY", "much")
    with pytest.raises(ValueError, match="JAXPR_OPT_MEMORY='much': expected bytes"):
        optimize(loss)


def test_what_a_budget_buys():
    """Each row but the first says what is computed again, and from which line."""
    found = budget(jax.grad(loss), jax.ShapeDtypeStruct(W.shape, W.dtype), H)
    today, *others = found.points
    assert (today.part, today.repeated) == (1.0, ()) and others
    assert all(each.part < 1 and each.repeated for each in others)
    places = {repeated.frame[0] for each in others for repeated in each.repeated}
    assert places == {__file__}
    assert f'memory="{binary_text_above(found.notable[1].bytes)}"' in str(found)
    assert len(found.to_dict()["points"]) == len(found.points)


def test_a_program_with_nothing_to_repeat():
    assert "computes no gradient" in str(budget(loss, W, H))
    assert "cheaper to compute again" in str(budget(jax.grad(lambda x: x**2), 1.0))


@pytest.mark.parametrize("nbytes", [5, 1023, 1025, 1_662_980, 2**20, 3 * 2**30 + 1])
def test_a_size_that_is_suggested_is_enough(nbytes):
    assert nbytes <= parse_bytes(binary_text_above(nbytes)) < 1.02 * nbytes


def test_the_command(capsys, tmp_path):
    """The table as a page of 80 columns, as data, or drawn."""
    line = ["budget", f"{__file__}:loss", "--grad", "--args", "f32[64,64]", "f32[64,64]"]
    assert main(line) == 0
    table = capsys.readouterr().out
    assert table.startswith("grad(loss), optimised, takes about ") and "nothing\n" in table
    assert max(map(len, table.splitlines())) <= 80
    assert main([*line, "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["points"][0]["part"] == 1.0
    assert main([*line, "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<circle") == len(made["points"]) == page.count("<tr>") - 1
    assert "is computed again" in page or "are computed again" in page


BAD = ["12 GiG", "", "-1", 0, -5, -0.5, 0.0, 1.5, "1.5", "nan", float("nan"), float("inf"), True]


@pytest.mark.parametrize("given", [*BAD, [], "0", "0.0"])
def test_bad_budgets(given):
    """One line says what was expected, before anything is traced."""
    with pytest.raises(ValueError, match=r"optimize: memory=.*expected bytes, as 65536") as raised:
        optimize(lambda x: 1 / 0, memory=given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("2 GiB", Budget(nbytes=2 * 2**30, written="2 GiB")),
        (4096, Budget(nbytes=4096, written="4096")),
        (np.int64(4096), Budget(nbytes=4096, written="4096")),
        (1, Budget(nbytes=1, written="1")),
        (0.25, Budget(part=0.25, written="0.25")),
        ("0.25", Budget(part=0.25, written="0.25")),
        (1.0, Budget(part=1.0, written="1.0")),
        ("minimal", Budget()),
    ],
)
def test_budgets(given, want):
    assert parse_budget(given) == want


def test_inside_a_shard_map():
    """Each device keeps to the budget; what the devices exchange afterwards has no price."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(w, h):
        value, g = jax.value_and_grad(loss)(w, h)
        return jax.lax.psum(value, "i"), jax.lax.psum(g, "i")

    program = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
    fitted = optimize(program, memory=0.125)
    assert memory(fitted, W, H) <= 1.1 * 0.125 * memory(optimize(program), W, H)
    assert_close(jax.jit(program)(W, H), fitted(W, H))


def until(n):
    """A loop of unknown length, whose carry is an array of 64 kB."""

    def loss(w, x):
        step = lambda state: (state[0] + 1, jnp.tanh(state[1] @ w))
        return jnp.sum(lax.while_loop(lambda state: state[0] < n, step, (0, x))[1] ** 2)

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5, 60])
def test_a_loop_of_unknown_length_keeps_fewer_carries(steps):
    """As many as fit; the gradient is the same, and the least is less than any budget."""
    w, x = 0.1 * jax.random.normal(jax.random.key(0), (64, 64)), jnp.ones((256, 64))
    gradient = lambda given: jax.jit(jax.grad(optimize(until(steps), memory=given)))
    expected, sizes = gradient(None)(w, x), [memory(gradient(None), w, x)]
    for given in (30 * x.nbytes, 16 * x.nbytes, "minimal"):
        sizes.append(memory(gradient(given), w, x))
        np.testing.assert_array_equal(gradient(given)(w, x), expected)
        assert given == "minimal" or sizes[-1] <= given
    assert sizes == sorted(sizes, reverse=True)


def test_loops_of_unknown_length_share_a_budget():
    w, x = 0.1 * jax.random.normal(jax.random.key(0), (64, 64)), jnp.ones((256, 64))
    twice = lambda w, x: until(20)(w, x) + until(30)(w, x + 1.0)
    gradient = jax.grad(optimize(twice, memory=40 * x.nbytes))
    assert memory(gradient, w, x) <= 40 * x.nbytes


def solved_in_each_step(a, b):
    """Time steps, each with a solver that stops early."""

    def refined(state, _):
        x, is_done = state
        new = jnp.tanh(x @ a + b)
        is_close = jnp.abs(new - x).max() < 1e-3
        return (jnp.where(is_done, x, new), is_done | is_close), None

    def step(x, _):
        x = lax.scan(refined, (0.5 * x, False), length=30)[0][0]
        return x, x.mean()

    x, means = lax.scan(step, jnp.zeros_like(b), length=40)
    return (x**2).sum() + means.sum()


def test_a_program_that_is_small_before_memory_is_traded_is_taken():
    """Without what is traded where there is no budget it fits, and nothing more is done to it."""
    a, b = 0.05 * jax.random.normal(jax.random.key(0), (64, 64)), jnp.ones((8, 64))
    without = memory(optimize(jax.grad(solved_in_each_step)), a, b)
    fitted = optimize(jax.grad(solved_in_each_step), memory=0.25)
    assert memory(fitted, a, b) <= 0.25 * without
    np.testing.assert_allclose(jax.jit(fitted)(a, b), jax.grad(solved_in_each_step)(a, b), 1e-4)


def layered(ws, x):
    """Layers in a Python loop, each under a checkpoint of its own."""
    for w in ws:
        x = jax.checkpoint(lambda x, w: x + jnp.tanh(x @ w))(x, w)
    return (x**2).sum()


def trained(ws, x):
    """Steps of a loop that each compute a gradient of such layers."""
    descend = lambda w, g: w - 0.1 * g
    step = lambda ws, _: (jax.tree.map(descend, ws, jax.grad(layered)(ws, x)), None)
    return lax.scan(step, ws, length=2)[0]


LAYERED = {
    "above": lambda given: optimize(jax.grad(layered), memory=given),
    "below": lambda given: jax.grad(optimize(layered, memory=given)),
    "in a loop": lambda given: optimize(trained, memory=given),
}


@pytest.mark.parametrize("way", LAYERED)
def test_checkpoints_in_straight_code_keep_to_the_budget_or_warn(way):
    """Also where XLA ignores them: the budget is met, or the warning is near what is taken."""
    ws, x = [jnp.full((32, 32), 0.01 * n) for n in range(10)], jnp.ones((256, 32))
    plain = trained if way == "in a loop" else jax.grad(layered)
    assert_close(jax.jit(plain)(ws, x), jax.jit(LAYERED[way]("512 KiB"))(ws, x))
    assert memory(LAYERED[way]("512 KiB"), ws, x) <= parse_bytes("512 KiB")
    with pytest.raises(BudgetError, match="at least"):
        jax.jit(LAYERED[way]("16 KiB")).lower(ws, x)
