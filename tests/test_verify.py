"""Every invariant, broken once: what the error says, and that it points at the op at fault."""

from textwrap import dedent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.bridge import compat_types
from jaxpr_opt.ir.graph import TERMINATOR, Constant, Op, Region
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.verify import VerifyError, verify
from tests.graphs import graph_of, op_of
from tests.programs import PROGRAMS


def scan_graph():
    return graph_of(
        lambda x, xs: lax.scan(lambda c, r: (c + r, jnp.sin(c)), x, xs), "f32[3]", "f32[8,3]"
    )


def cond_graph():
    return graph_of(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), "bool[]", "f32[3]")


def while_graph():
    return graph_of(
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
        "f32[3]",
    )


def value(shape=(3,), dtype="float32"):
    return Constant(compat_types.array_aval(shape, np.dtype(dtype)), np.zeros(shape, dtype))


def refuses(graph, *words, types=False):
    with pytest.raises(VerifyError) as error:
        verify(graph, types=types)
    text = str(error.value)
    for word in words:
        assert word in text, text
    assert "expected" in text and "got" in text and "because" in text
    return text


@pytest.mark.parametrize(("fun", "args"), PROGRAMS)
def test_every_imported_program_is_valid(fun, args):
    for phase in ("differentiable", "final"):
        verify(import_jaxpr(jax.make_jaxpr(fun)(*args), phase), types=True)


def test_the_fault_is_marked_in_the_program():
    graph = scan_graph()
    scan, sin = op_of(graph, "scan"), op_of(graph, "sin")
    Rewriter(graph).set_outputs(graph.body, [sin.result, scan.results[1]])
    text = refuses(graph)
    assert text == dedent("""\
        fn is not a program
            fn (x:f32[3], xs:f32[8,3]) {
              c:f32[3], ys:f32[8,3] = scan[8] carry(c=x) xs(x=xs) {
                a:f32[3] = add c x
                s:f32[3] = sin c
                yield carry(a) ys(s)
              }
        >>>   return s, ys
              ^ expected an operand defined here, got s, because it is local to a region that does not hold this op
            }""")  # noqa: E501


def test_a_long_program_is_shown_around_the_fault():
    def fun(x):
        for _ in range(40):
            x = jnp.sin(x)
        return x

    graph = graph_of(fun, "f32[3]")
    op = list(graph.body.ops)[20]
    op.primitive = None
    text = refuses(graph)
    assert 20 < len(text.splitlines()) < 30 and ">>>   s20:f32[3] = sin s19" in text


def test_a_region_without_terminator():
    graph = scan_graph()
    region = op_of(graph, "scan").body
    region._remove(region.terminator)
    refuses(graph, "expected a yield", "every region ends in one")


def test_an_op_below_the_terminator():
    graph = scan_graph()
    region = op_of(graph, "scan").body
    region._insert(Op(TERMINATOR, (), ()), None)
    refuses(graph, "nothing below it")


def test_a_region_of_another_op():
    graph = cond_graph()
    op_of(graph, "cond").branches[0].owner = None
    refuses(graph, "to own its regions")


def test_a_body_of_another_graph():
    graph = cond_graph()
    graph.body.owner = None
    refuses(graph, "the graph to own its body")


def test_a_broken_link():
    graph = scan_graph()
    op_of(graph, "sin").prev = None
    refuses(graph, "`prev` right before it", ">>>     s:f32[3] = sin c")


def test_a_use_that_is_not_listed():
    graph = scan_graph()
    graph.inputs[0].uses.clear()
    refuses(graph, "a use of x", "every operand is listed")


def test_a_listed_use_that_is_none():
    graph = scan_graph()
    graph.inputs[0].uses[next(iter(graph.inputs[1].uses))] = None
    refuses(graph, "to be x", "listed as a use")


def test_a_value_read_before_it_is_defined():
    graph = graph_of(lambda x: jnp.cos(jnp.sin(x)), "f32[3]")
    Rewriter(graph).move(op_of(graph, "cos"), before=op_of(graph, "sin"))
    refuses(graph, "got s", "defined further down")


def test_a_value_whose_op_was_erased():
    graph = graph_of(lambda x: jnp.cos(jnp.sin(x)), "f32[3]")
    sin = op_of(graph, "sin")
    sin._set_operands(())
    graph.body._remove(sin)
    refuses(graph, ">>>   c:f32[3] = cos", "the op that computed it was erased")


def test_a_value_of_another_graph():
    graph, other = scan_graph(), scan_graph()
    Rewriter(graph).set_outputs(graph.body, [other.inputs[0]])
    refuses(graph, "another graph")


def test_a_parameter_that_was_dropped():
    graph = scan_graph()
    scan = op_of(graph, "scan")
    Rewriter(graph).set_scan(scan, streams=[])
    refuses(graph, "got <unknown>", "no longer defines it")


def test_an_isolated_region_captures_nothing():
    graph = graph_of(lambda x: jax.jit(jnp.sin, donate_argnums=0)(x * 2), "f32[3]")
    Rewriter(graph).set_operand(op_of(graph, "sin"), 0, graph.inputs[0])
    refuses(graph, "the region of jit is isolated")


@pytest.mark.parametrize(
    ("index", "shape", "words"),
    [
        (0, (4,), ("an initial value of type f32[3]", "the carry c keeps its type")),
        (1, (7, 3), ("a stream of 8 rows of f32[3]", "the loop takes 8 steps")),
        (1, (8, 4), ("a stream of 8 rows of f32[3]",)),
    ],
)
def test_operands_of_a_scan(index, shape, words):
    graph = scan_graph()
    Rewriter(graph).set_operand(op_of(graph, "scan"), index, value(shape))
    refuses(graph, *words, ">>>   c:f32[3], ys:f32[8,3] = scan[8]")


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (
            [value((4,)), value()],
            ("a next value of type f32[3]", "got [0.0, 0.0, 0.0, 0.0]:f32[4]"),
        ),
        ([value((), "int32"), value()], ("a next value of type f32[3]",)),
        ([value(), value((4,))], ("a stack of 8 rows of f32[4]", "got ys:f32[8,3]")),
        ([value()], ("2 outputs", "each carry and stack has one")),
    ],
)
def test_what_a_scan_yields(outputs, words):
    graph = scan_graph()
    Rewriter(graph).set_outputs(op_of(graph, "scan").body, outputs)
    refuses(graph, *words)


def test_a_scan_of_another_length():
    graph = scan_graph()
    Rewriter(graph).set_scan(op_of(graph, "scan"), length=7)
    refuses(graph, "a stream of 7 rows", "got xs:f32[8,3]")


def test_a_carry_too_many():
    graph = scan_graph()
    op_of(graph, "scan").num_carries = 3
    refuses(graph, "got 3", "carries come first")


@pytest.mark.parametrize("bad", [value((), "float32"), value((2,), "bool"), value((), "int32")])
def test_a_selector_must_be_a_bool_for_two_branches(bad):
    graph = cond_graph()
    Rewriter(graph).set_operand(op_of(graph, "cond"), 0, bad)
    refuses(graph, "a scalar bool selector", "it chooses between 2 branches")


def test_a_selector_must_be_an_integer_for_more():
    graph = graph_of(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tan], x), "i32[]", "f32[3]")
    Rewriter(graph).set_operand(op_of(graph, "cond"), 0, value((), "bool"))
    refuses(graph, "a scalar integer selector", "3 branches")


def test_branches_must_agree():
    graph = cond_graph()
    Rewriter(graph).set_outputs(op_of(graph, "cond").branches[0], [value((4,))])
    refuses(graph, "a value of type f32[3]", "the result r has that type")


def test_branches_take_no_parameters():
    graph = cond_graph()
    op_of(graph, "cond").branches[0]._set_params(Region([value().aval]).params)
    refuses(graph, "0 parameters, got 1", "branches capture what they read")


@pytest.mark.parametrize("bad", [[value((), "int32")], [value((2,), "bool")], []])
def test_a_predicate_is_one_bool(bad):
    graph = while_graph()
    Rewriter(graph).set_outputs(op_of(graph, "while").predicate, bad)
    refuses(graph, "one bool[] from the predicate", "goes on or it does not")


def test_a_while_keeps_its_types():
    graph = while_graph()
    loop = op_of(graph, "while")
    Rewriter(graph).set_operand(loop.body.terminator, 1, value((4,)))
    refuses(graph, "a next value of type f32[3]")


def test_a_remat_captures():
    graph = graph_of(jax.checkpoint(jnp.sin), "f32[3]")
    remat = op_of(graph, "remat")
    remat._set_operands(graph.inputs)
    refuses(graph, "0 operands, got 1", "a remat captures what it reads")


def test_a_call_passes_what_its_body_takes():
    graph = graph_of(jax.jit(jnp.sin, donate_argnums=0), "f32[3]")
    Rewriter(graph).set_operand(op_of(graph, "jit"), 0, value((4,)))
    refuses(graph, "an operand of type f32[3]", "the parameter")


def test_effects_are_effects_of_the_loop_too():
    def fun(x):
        return lax.scan(lambda c, _: (c + 1, jax.debug.print("{}", c)), x, None, length=2)[0]

    graph = graph_of(fun, "f32[]")
    op_of(graph, "scan").effects = frozenset()
    refuses(graph, "expected the effect", "one of its regions has it")


def test_an_op_without_primitive():
    graph = graph_of(jnp.sin, "f32[3]")
    op_of(graph, "sin").primitive = None
    refuses(graph, "a primitive and no region")


def test_a_result_of_another_type_than_its_primitive_gives():
    graph = graph_of(jnp.sin, "f32[3]")
    op_of(graph, "sin").result.aval = value((4,)).aval
    verify(graph)
    refuses(graph, "a result of type f32[3]", "sin gives that type", types=True)


def test_operands_that_a_primitive_does_not_take():
    graph = graph_of(lambda x, y: x + y, "f32[3]", "f32[3]")
    Rewriter(graph).set_operand(op_of(graph, "add"), 0, value((4,)))
    verify(graph)
    refuses(graph, "operands that add takes", "JAX says", types=True)


def test_weak_types_are_not_compared():
    graph = scan_graph()
    scan = op_of(graph, "scan")
    weak = compat_types.with_weak_type(scan.body.params[0].aval, True)
    scan.body.params[0].aval = weak
    verify(graph)
