"""Fakes of a JAX whose primitives are not as we know them: another name, other parameters, values
and effects of kinds that nobody has heard of.

JAX goes on to work with what it had: only programs, once they are traced, hold the new equations.
"""

from functools import partial

import jax

from jaxpr_opt.bridge import compat_rules

core, effects, ad = compat_rules._core, compat_rules._effects, compat_rules._ad
batching, mlir, pe = compat_rules._batching, compat_rules._mlir, compat_rules._pe


def renamed(old, new):
    """A parameter has another name: how it becomes so, and back."""
    return (
        lambda params: {new if k == old else k: v for k, v in params.items()},
        lambda params: {old if k == new else k: v for k, v in params.items()},
    )


def added(name, value):
    """There is one parameter more."""
    return (
        lambda params: {**params, name: value},
        lambda params: {k: v for k, v in params.items() if k != name},
    )


def change(monkeypatch, real, params, name=None):
    """From now on equations of `real` are of a primitive with other parameters, or another name."""
    to_new, to_old = params
    new = core.Primitive(name or real.name)
    new.multiple_results = real.multiple_results
    new.abstract_eval = lambda *args, **kw: real.abstract_eval(*args, **to_old(kw))

    def stage(primitive, trace, args, *rest):
        *avals, params = rest
        if isinstance(trace, pe.DynamicJaxprTrace):
            made = params if primitive is new else to_new(params)
            return trace.process_primitive(new, args, made)
        params = to_old(params) if primitive is new else params
        return core.Primitive.bind_with_trace(real, trace, args, *avals, params)

    def as_before(eqn):
        return eqn.replace(primitive=real, params=to_old(eqn.params))

    def on_equation(table, rule, *args):
        *others, eqn = args
        return table[rule](*others, as_before(eqn))

    def on_params(rule, *args, **kw):
        return rule(*args, **to_old(kw))

    monkeypatch.setattr(real, "bind_with_trace", partial(stage, real))
    new.def_bind_with_trace(partial(stage, new))
    for table in (pe.dce_rules, pe.partial_eval_jaxpr_custom_rules):
        if real in table:
            monkeypatch.setitem(table, new, partial(on_equation, table, real))
    for table in (ad.primitive_transposes, ad.fancy_transposes):
        if real in table:
            monkeypatch.setitem(table, new, partial(on_params, table[real]))
    lowering = mlir._lowerings[real]
    entry = type(lowering)(partial(on_params, lowering.rule), lowering.inline)
    monkeypatch.setitem(mlir._lowerings, new, entry)
    jax.clear_caches()  # jaxprs of library functions are remembered


# ---------------------------------------------------------------- kinds of tomorrow


class Tomorrow(effects.Effect):
    """An effect nobody has heard of."""

    __str__ = lambda _: "Tomorrow"


class Box(core.AbstractValue):
    """A type of values that is no array."""

    def __eq__(self, other):
        return type(other) is Box

    def __hash__(self):
        return hash(Box)

    def str_short(self, short_dtypes=False, mesh_axis_types=False):
        return "Box"

    def to_tangent_aval(self):
        return core.ShapedArray((), jax.dtypes.float0)

    to_ct_aval = to_tangent_aval


def identity(name, to_aval=lambda aval: aval, effect=core.no_effects):
    """A primitive that changes nothing of a number but its type."""
    primitive = core.Primitive(name)
    primitive.def_effectful_abstract_eval(lambda aval: (to_aval(aval), effect))
    mlir.register_lowering(primitive, lambda ctx, x: [x])
    batching.primitive_batchers[primitive] = lambda args, dims: (primitive.bind(*args), dims[0])
    ad.deflinear2(primitive, lambda ct, x: [ct])
    return primitive


def allow(monkeypatch, effect):
    """Let JAX stage programs with an effect, as the libraries that bring one do."""
    for kinds in (
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    ):
        monkeypatch.setattr(kinds, "_effect_types", {*kinds._effect_types, effect})


mlir.ir_type_handlers[Box] = lambda *_: mlir.ir.RankedTensorType.get((), mlir.ir.F32Type.get())
