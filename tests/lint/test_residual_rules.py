"""Rules about what a loop stores: the line, the cause, what it costs, and who removes it."""

import inspect

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from examples import ragged_rnn
from jaxpr_opt.lint.options import Options
from jaxpr_opt.lint.rule import rules
from jaxpr_opt.lint.run import check
from jaxpr_opt.lint.subject import subject

STEPS = 32
SMALL = Options(min_bytes=64, min_share=0.0)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


W, X, XS = f32(8, 8), f32(8), f32(STEPS, 8)


def found(program, *args, options=SMALL, family="JXO1"):
    about = subject(program, *args)
    about.options = options
    return check(about, [rule for code, rule in rules().items() if code.startswith(family)])


def marked(program):
    """The line of a program's source with a comment `# here`."""
    lines, first = inspect.getsourcelines(program)
    return first + next(n for n, line in enumerate(lines) if "# here" in line)


def gradient(loss):
    return jax.grad(loss, argnums=(0, 1))


# -- one program for every cause


def invariant(w, xs):
    """A step that some rows of a batch skip: JAX cannot tell that they would all do the same."""

    def one(x, stop):
        step = lambda h: jnp.tanh(jnp.sin(w) @ h)  # here
        body = lambda h, t: (lax.cond(t < stop, step, lambda h: h, h), None)
        return lax.scan(body, x, jnp.arange(STEPS))[0]

    return jax.vmap(one)(xs, jnp.arange(len(xs))).sum()


def untaken(w, x):
    def step(h, t):
        return lax.cond(t < 3, lambda h: jnp.sin(jnp.sin(w @ h)), lambda h: h, h), None  # here

    return lax.scan(step, x, jnp.arange(STEPS))[0].sum()


def selected(w, x):
    def step(h, t):
        w_or_w = jnp.where(h[0] > t, w, lax.stop_gradient(w))  # here
        return jnp.tanh(w_or_w @ h), None

    return lax.scan(step, x, jnp.arange(STEPS))[0].sum()


def whole_buffer(w, x):
    def step(carry, t):
        h, cache = carry
        cache = cache.at[t].set(h)  # here
        return (jnp.tanh(w @ h + cache.T @ (cache @ h)), cache), None

    (h, _), _ = lax.scan(step, (x, jnp.zeros((STEPS, 8))), jnp.arange(STEPS))
    return h.sum()


@pytest.mark.parametrize(
    ("program", "code", "shape"),
    [
        (invariant, "JXO101", f"f32[{STEPS},8,8]"),
        (untaken, "JXO102", "f32[8]"),
        (selected, "JXO103", "f32[8,8]"),
        (whole_buffer, "JXO104", f"f32[{STEPS},8]"),
    ],
)
def test_the_line_and_the_cause(program, code, shape):
    x = XS if program is invariant else X
    findings = [f for f in found(gradient(program), W, x) if f.shape == shape]
    assert {(f.code, f.frame[:2]) for f in findings} == {(code, (__file__, marked(program)))}
    for finding in findings:
        assert finding.fixed_by
        assert f"`optimize` does it ({finding.fixed_by})" in finding.fix
        assert finding.formula.startswith(f"{STEPS} x ")


def test_the_bytes_are_those_of_all_steps():
    (finding,) = found(gradient(whole_buffer), W, X)[:1]
    assert finding.bytes == STEPS * (STEPS * 8 * 4)
    assert finding.formula == f"{STEPS} x 1.02 kB"
    assert finding.says.startswith("JAX stores the whole f32")
    assert f"in each of {STEPS} steps" in finding.says


def test_a_batched_branch_stores_the_weights_for_every_row():
    """jax#8239 under `vmap`: the argument is told by its name."""
    args = ragged_rnn.arguments(batch=4, time=8, longest=3, features=2, width=8)
    findings = found(jax.grad(ragged_rnn.loss), *args, options=Options(min_bytes=4096))
    assert [f.code for f in findings] == ["JXO103"]
    assert "params['recur'] f32[4,8,8] comes from outside" in findings[0].says


# -- programs on which all is as it should be


def carried_along(w, x):
    """JAX sees by itself that the weight, and its sine, are the same in every step."""
    step = lambda carry, _: ((jnp.tanh(jnp.sin(carry[1]) @ carry[0]), carry[1]), None)
    return lax.scan(step, (x, w), None, length=STEPS)[0][0].sum()


def streamed(w, xs):
    return lax.scan(lambda h, x: (jnp.tanh(w @ h * x), None), xs[0], xs)[0].sum()


def checkpointed(w, x):
    step = jax.checkpoint(lambda h, _: (jnp.tanh(w @ jnp.sin(h)), None))
    return lax.scan(step, x, None, length=STEPS)[0].sum()


def written_once(w, x):
    def step(carry, t):
        h, ys = carry
        h = jnp.tanh(w @ h)
        return (h, ys.at[t].set(h)), None

    return lax.scan(step, (x, jnp.zeros((STEPS, 8))), jnp.arange(STEPS))[0][1].sum()


@pytest.mark.parametrize(
    ("program", "args"),
    [(carried_along, (W, X)), (streamed, (W, XS)), (checkpointed, (W, X)), (written_once, (W, X))],
)
def test_silence(program, args):
    assert found(gradient(program), *args) == ()


def test_small_things_are_not_reported():
    assert found(gradient(whole_buffer), W, X, options=Options()) == ()


def test_a_program_that_differentiates_nothing_stores_nothing():
    assert found(whole_buffer, W, X) == ()


# -- rematerialisation


def named(w, x, *, saved, name="hidden"):
    policy = jax.checkpoint_policies.save_only_these_names(saved)

    def block(w, x):
        return jnp.sin(checkpoint_name(w @ jnp.sin(x), name))

    return jax.checkpoint(block, policy=policy)(w, x).sum()  # here


@pytest.mark.parametrize("transform", [lambda f: f, gradient])
def test_a_policy_that_names_nothing(transform):
    """maxtext#4990: the name was misspelt, and nobody was told."""
    program = transform(lambda w, x: named(w, x, saved="hiden"))
    (finding,) = found(program, W, X, family="JXO401")
    assert finding.frame[:2] == (__file__, marked(named))
    assert "'hiden'" in finding.says
    assert (finding.reason[:27], finding.fix) == (
        "values are named 'hidden', ",
        "did you mean 'hidden'?",
    )
    assert found(transform(lambda w, x: named(w, x, saved="hidden")), W, X, family="JXO401") == ()


def policies():
    all_of = jax.checkpoint_policies
    names = ["attention", "mlp"]
    offload = {"offload_src": "device", "offload_dst": "pinned_host"}
    yield all_of.save_only_these_names(*names)
    yield all_of.save_any_names_but_these(*names)
    yield all_of.save_from_both_policies(all_of.dots_saveable, all_of.save_only_these_names(*names))
    yield all_of.save_and_offload_only_these_names(
        names_which_can_be_saved=names[:1], names_which_can_be_offloaded=names[1:], **offload
    )


@pytest.mark.parametrize("policy", list(policies()), ids=lambda _: "policy")
def test_all_policies_that_go_by_names(policy):
    def program(x, name):
        body = lambda x: checkpoint_name(jnp.sin(x), name) * 2
        return jax.checkpoint(body, policy=policy)(x)

    (finding,) = found(lambda x: program(x, "other"), X, family="JXO401")
    assert "'attention', 'mlp'" in " ".join(sorted(finding.says.split(" names ")[1:]))
    assert found(lambda x: program(x, "mlp"), X, family="JXO401") == ()


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_policies_that_do_not_go_by_names(policy):
    assert found(jax.checkpoint(jnp.sin, policy=policy), X, family="JXO401") == ()


def twice_checkpointed(w, x):
    layer = jax.checkpoint(lambda x: jnp.tanh(w @ jnp.sin(x)))
    return jax.checkpoint(lambda x: layer(x) * 2.0)(x).sum()  # here


def checkpointed_loop_in_a_checkpoint(w, x):
    step = jax.checkpoint(lambda h, _: (jnp.tanh(w @ jnp.sin(h)), None))
    return jax.checkpoint(lambda x: lax.scan(step, x, None, length=STEPS)[0])(x).sum()


def checkpoint_of_a_part(w, x):
    half = jax.checkpoint(lambda x: jnp.tanh(w @ x))
    return jax.checkpoint(lambda x: jnp.tanh(w @ half(x)))(x).sum()


def test_a_checkpoint_that_does_all_the_work_of_another():
    for program in (twice_checkpointed, gradient(twice_checkpointed)):
        (finding,) = found(program, W, X, family="JXO402")
        assert "3 times" in finding.says
        assert finding.frame[:2] == (__file__, marked(twice_checkpointed))


@pytest.mark.parametrize("program", [checkpointed_loop_in_a_checkpoint, checkpoint_of_a_part])
def test_checkpoints_in_checkpoints_that_store_less(program):
    assert found(gradient(program), W, X, family="JXO402") == ()


def test_what_is_cheaper_to_recompute_is_told_to_those_who_ask():
    def masked(w, xs):
        step = lambda h, x: (jnp.where(x > 0, w @ h, h), None)  # here
        return lax.scan(step, xs[0], xs)[0].sum()

    rule = rules()["JXO403"]
    assert not rule.default
    findings = found(gradient(masked), W, XS, family="JXO403")
    assert {f.frame[:2] for f in findings} == {(__file__, marked(masked))}
    assert {f.fixed_by for f in findings} == {"narrow-residuals"}
