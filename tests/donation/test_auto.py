"""`donate="auto"`: what the caller gives up is donated, and nothing that anybody can still see."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import itertools
import operator
import queue
import sys
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxpr_opt
from jaxpr_opt.donation import caller

step = jaxpr_opt.optimize(lambda x: x * 2 + 1, donate="auto")
fold = jaxpr_opt.optimize(lambda x, y: x * 2 + y, donate="auto")
update = jaxpr_opt.optimize(
    lambda state, by: jax.tree.map(lambda x: x * 2 + by, state), donate="auto"
)
module = types.ModuleType("module")
module.step = step


def make():
    """An array that nothing else refers to."""
    return jnp.arange(8, dtype=jnp.float32) + 1


MADE = np.arange(8, dtype=np.float32) + 1


def place(array):
    return array.unsafe_buffer_pointer()


# ---------------------------------------------------------------- given up: the memory is reused


def overwritten():
    x = make()
    before = place(x)
    x = step(x)
    return before, x


def never_read_again():
    x = make()
    before = place(x)
    y = step(x)
    return before, y


def deleted_afterwards():
    x = make()
    before = place(x)
    y = step(x)
    del x
    return before, y


def read_before_in_the_same_call():
    x = make()
    before = place(x)
    y = fold(x, x.sum())
    return before, y


def called_through_a_variable():
    local = step
    x = make()
    before = place(x)
    x = local(x)
    return before, x


def called_through_a_closure():
    local = step

    def inner():
        x = make()
        before = place(x)
        x = local(x)
        return before, x

    return inner()


def called_through_a_module():
    x = make()
    before = place(x)
    x = module.step(x)
    return before, x


def with_another_argument_by_name():
    x = make()
    before = place(x)
    x = fold(x, y=1.0)
    return before, x


def given_to_a_function():
    def inner(x):
        return place(x), step(x)

    return inner(make())


def in_a_comprehension():
    (made,) = [(place(x), step(x)) for x in (make() for _ in range(1))]
    return made


def in_try_without_a_reader():
    x = make()
    before = place(x)
    try:
        x = step(x)
    except ValueError:
        return None
    return before, x


def in_containers():
    state = {"a": [make()], "b": (make(), None, ())}
    before = place(state["a"][0])
    state = update(state, 1.0)
    return before, state["a"][0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    weights: jax.Array
    count: int


def in_a_dataclass():
    state = State(make(), 0)
    before = place(state.weights)
    state = update(state, 1.0)
    return before, state.weights


def in_an_object_whose_attributes_were_looked_at():
    state = State(make(), 0)
    len(state.__dict__)
    before = place(state.weights)
    state = update(state, 1.0)
    return before, state.weights


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layers:
    first: State
    rest: dict


def in_containers_of_many_kinds():
    """One of which holds no arrays, and is referred to elsewhere."""
    settings = {"count": [1, None], "by": State(2, 3)}
    rest = {"a": State(make(), 1), "b": [State(make(), 2)], "c": Pair(make(), settings)}
    state = [Layers(State(make(), 7), rest), settings]
    del rest
    before = place(state[0].rest["b"][0].weights)
    state = update(state, 1.0)
    assert settings["by"].count == 3
    return before, state[0].rest["b"][0].weights


class Pair(collections.namedtuple("Pair", "a b")):
    __slots__ = ()


def in_a_named_tuple():
    state = Pair(make(), make())
    before = place(state.b)
    state = update(state, 1.0)
    return before, state.b


GIVEN_UP = [
    overwritten,
    never_read_again,
    deleted_afterwards,
    read_before_in_the_same_call,
    called_through_a_variable,
    called_through_a_closure,
    called_through_a_module,
    with_another_argument_by_name,
    given_to_a_function,
    in_a_comprehension,
    in_try_without_a_reader,
    in_containers,
    in_a_dataclass,
    in_an_object_whose_attributes_were_looked_at,
    in_a_named_tuple,
    in_containers_of_many_kinds,
]


@pytest.mark.parametrize("call", GIVEN_UP, ids=lambda call: call.__name__)
def test_what_is_given_up_is_donated(call):
    for _ in range(20):  # the interpreter specialises calls as it goes
        before, made = call()
        assert place(made) == before


def test_a_loop_keeps_one_copy():
    def run(count):
        x = make()
        places = {place(x)}
        for _ in range(count):
            x = step(x)
            places.add(place(x))
        return places

    assert len(run(50)) == 1


def test_nested_calls():
    """What one call makes is given to the next at once."""

    def run():
        return step(step(step(make())))

    def count():
        return len(jax.live_arrays())

    before = count()
    made = run()
    assert count() == before + 1
    np.testing.assert_array_equal(made, ((MADE * 2 + 1) * 2 + 1) * 2 + 1)


def test_a_donated_array_says_so():
    """Reading it anyway, by a way that no proof can see, is JAX's own error."""
    frames = []

    def run():
        x = make()
        step(x)
        peek()

    def peek():
        frames.append(sys._getframe(1).f_locals["x"])

    run()
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        frames[0] + 1


# ---------------------------------------------------------------- kept: each returns what it kept


def read_again():
    x = make()
    step(x)
    return x


def read_in_the_next_round():
    x = make()
    for _ in range(3):
        y = step(x)
    return y * 0 + MADE


def read_in_one_branch():
    x = make()
    y = step(x)
    return x if y.size else y


def another_variable():
    x = make()
    kept = x
    x = step(x)
    return kept


def the_same_twice():
    x = make()
    kept = [x]
    x = fold(x, x)
    return kept[0]


def in_a_list():
    kept = [make()]
    x = kept[0]
    x = step(x)
    return kept[0]


def straight_from_a_list():
    kept = [make()]
    kept.append(step(kept[0]))
    return kept[0]


def in_a_dictionary():
    kept = {"x": make()}
    x = kept["x"]
    x = step(x)
    return kept["x"]


def in_an_object():
    kept = types.SimpleNamespace(x=make())
    kept.y = step(kept.x)
    return kept.x


def in_an_iterator():
    kept = iter([make()])
    first, kept = itertools.tee(kept)
    x = next(first)
    x = step(x)
    return next(kept)


def in_a_queue():
    kept = queue.Queue()
    x = make()
    kept.put(x)
    x = step(x)
    return kept.get()


def in_a_closure():
    x = make()

    def kept():
        return x

    y = step(x)
    return kept() + 0 * y


def in_a_cell_of_another():
    x = make()

    def keeper(inner):
        return lambda: inner

    kept = keeper(x)
    x = step(x)
    return kept()


def as_a_default():
    x = make()

    def kept(x=x):
        return x

    x = step(x)
    return kept()


def in_a_partial():
    x = make()
    kept = functools.partial(operator.pos, x)
    x = step(x)
    return kept()


def as_a_global():
    global GLOBAL  # noqa: PLW0603
    GLOBAL = make()
    step(GLOBAL)
    return GLOBAL


def behind_a_global():
    global GLOBAL  # noqa: PLW0603
    x = GLOBAL = make()
    x = step(x)
    return GLOBAL


def as_a_weak_reference():
    x = make()
    kept = weakref.ref(x)
    y = step(x)
    return kept() if kept() is not None else y


def by_a_walrus():
    y = step(kept := make())
    return kept + 0 * y


def unbound_while_others_are_evaluated():
    """The variable is empty when the call is made: it does not explain a reference."""
    kept = [make()]
    x = kept[0]
    fold(x, (x := 1.0))
    return kept[0]


def read_by_a_handler():
    x = make()
    try:
        x = step(x)
        raise ValueError
    except ValueError:
        return x * 0 + MADE


def read_by_the_handler_of_the_call():
    x = make()
    fail = jaxpr_opt.optimize(lambda x: x[:, None] @ x, donate="auto")
    try:
        x = fail(x)
    except TypeError:
        return x


def read_in_finally():
    x = make()
    kept = []
    try:
        step(x)
    finally:
        kept.append(x)
    return kept[0]


def read_after_a_with_that_swallows():
    x = make()
    with contextlib.suppress(ValueError):
        step(x)
        raise ValueError
    return x


def held_by_a_traceback():
    kept = []

    def inner():
        x = make()
        try:
            raise ValueError
        except ValueError as error:
            kept.append(error)
        step(x)

    inner()
    return kept[0].__traceback__.tb_frame.f_locals["x"]


def held_by_an_exception():
    x = make()
    kept = ValueError(x)
    x = step(x)
    return kept.args[0]


def in_a_generator():
    def generate():
        x = make()
        yield x
        x = step(x)
        yield x

    running = generate()
    kept = next(running)
    next(running)
    return kept


def by_the_frame_of_a_generator():
    def generate():
        x = make()
        yield
        step(x)
        yield

    running = generate()
    next(running)
    next(running)
    return running.gi_frame.f_locals["x"]


def by_the_frame_of_a_coroutine():
    kept = []

    async def run():
        x = make()
        kept.append(asyncio.current_task())
        step(x)
        kept.append(kept[0].get_coro().cr_frame.f_locals["x"])

    asyncio.run(run())
    return kept[1]


def by_a_thread():
    x = make()
    kept, go = [], threading.Event()

    def hold(x):
        go.wait()
        kept.append(x)

    thread = threading.Thread(target=hold, args=(x,))
    thread.start()
    x = step(x)
    go.set()
    thread.join()
    return kept[0]


class Spy:
    """Looks into the frame that calls it."""

    def frame(self):
        self.held = sys._getframe(1)

    def variables(self):
        self.held = sys._getframe(1).f_locals


def by_a_held_frame():
    def inner():
        x = make()
        spy.frame()
        step(x)

    spy = Spy()
    inner()
    return spy.held.f_locals["x"]


def by_held_variables():
    def inner():
        x = make()
        spy.variables()
        step(x)

    spy = Spy()
    inner()
    return spy.held["x"]


def by_held_variables_beside_a_local_function():
    """Until 3.12 the mapping is the frame's own: looking the function up must leave it alone."""

    def inner():
        local = step
        x = make()
        spy.variables()
        local(x)

    spy = Spy()
    inner()
    return spy.held["x"]


def by_locals():
    x = make()
    step(x)
    return locals()["x"]


def by_vars():
    x = make()
    step(x)
    return vars()["x"]


def by_eval():
    x = make()
    step(x)
    return eval("x")


def by_the_own_frame():
    x = make()
    step(x)
    return sys._getframe().f_locals["x"]


def under_a_tracer():
    frames = []

    def trace(frame, event, arg):
        frames.append(frame)

    def inner():
        x = make()
        return step(x)

    sys.settrace(trace)
    try:
        inner()
    finally:
        sys.settrace(None)
    return next(f for f in frames if f.f_code is inner.__code__).f_locals["x"]


def under_a_profiler():
    found = []

    def profile(frame, event, arg):
        if event == "return" and frame.f_code is inner.__code__:
            found.append(frame.f_locals["x"])

    def inner():
        x = make()
        return step(x)

    sys.setprofile(profile)
    try:
        inner()
    finally:
        sys.setprofile(None)
    return found[0]


def through_unpacking():
    kept = [make()]
    step(*kept)
    return kept[0]


def through_a_dictionary():
    kept = {"x": make()}
    step(**kept)
    return kept["x"]


def through_a_stored_partial():
    kept = functools.partial(step, make())
    kept()
    return kept.args[0]


def through_map():
    kept = [make()]
    x = kept[0]
    list(map(step, kept))
    return x


def through_reduce():
    kept = [make(), make()]
    xs = kept
    reduce = functools.reduce
    reduce(fold, xs)
    return kept[1]


def through_a_bound_call():
    """Its arguments are referred to less often on the way, which must not hide an alias."""
    call = step.__call__
    x = make()
    kept = [x, x]
    x = call(x)
    return kept[0]


def through_a_partial_of_it():
    call = functools.partial(step.__call__)
    x = make()
    kept = [x]
    x = call(x)
    return kept[0]


def through_the_class():
    x = make()
    kept = [x]
    x = type(step).__call__(step, x)
    return kept[0]


def in_a_shared_container():
    kept = {"a": make()}
    state = kept
    state = update(state, 1.0)
    return kept["a"]


def one_leaf_shared():
    state = {"a": make(), "b": {"c": make()}}
    kept = state["b"]["c"]
    state = update(state, 1.0)
    return kept


def an_inner_container_shared():
    state = {"a": make(), "b": {"c": make()}}
    kept = state["b"]
    state = update(state, 1.0)
    return kept["c"]


def by_a_view_of_a_container():
    state = {"a": make()}
    kept = state.values()
    state = update(state, 1.0)
    return next(iter(kept))


def by_the_attributes_of_an_object():
    state = State(make(), 0)
    kept = state.__dict__
    state = update(state, 1.0)
    return kept["weights"]


def by_a_weak_reference_to_a_container():
    state = State(make(), 0)
    kept = weakref.ref(state)
    made = update(state, 1.0)
    return kept().weights if kept() is not None else made.weights


REMEMBERED = []


@jax.tree_util.register_pytree_node_class
class Forgetful:
    """Holds nothing: its arrays are elsewhere."""

    def tree_flatten(self):
        return list(REMEMBERED), None

    @classmethod
    def tree_unflatten(cls, _, children):
        del children
        return cls()


def in_an_object_that_does_not_hold_it():
    REMEMBERED[:] = [make()]
    state = Forgetful()
    state = update(state, 1.0)
    return REMEMBERED.pop()


def in_one_of_several_objects_that_does_not_hold_it():
    REMEMBERED[:] = [make()]
    state = [State(make(), 0), Forgetful()]
    state = update(state, 1.0)
    return REMEMBERED.pop()


def in_one_of_several_dataclasses():
    state = {"a": State(make(), 0), "b": State(make(), 0)}
    kept = state["b"].weights
    state = update(state, 1.0)
    return kept


def as_an_alias_on_the_device():
    x = make()
    kept = jax.device_put(x, jax.devices()[0])
    x = step(x)
    return kept


def as_a_shard():
    x = make()
    kept = x.addressable_shards[0].data
    x = step(x)
    return kept


def as_the_data_of_a_key():
    kept = []

    def inner():
        key = jax.random.wrap_key_data(jnp.arange(2, dtype=jnp.uint32) + 1)
        kept.append(jax.random.key_data(key))
        key = following(key)

    inner()
    return MADE * 0 + MADE if kept[0].tolist() == [1, 2] else kept[0]


following = jaxpr_opt.optimize(lambda key: jax.random.split(key)[0], donate="auto")


def as_a_numpy_array():
    x = make()
    kept = np.asarray(x)
    x = step(x)
    return kept


def through_dlpack():
    x = make()
    kept = np.from_dlpack(x)
    x = step(x)
    return kept


KEPT = [
    value
    for name, value in list(globals().items())
    if isinstance(value, types.FunctionType)
    and value.__module__ == __name__
    and value not in (make, place, *GIVEN_UP)
    and not name.startswith("test_")
]


@pytest.mark.parametrize("call", KEPT, ids=lambda call: call.__name__)
def test_what_somebody_can_see_is_kept(call):
    for _ in range(20):
        np.testing.assert_array_equal(call(), MADE)


def test_every_way_is_tried():
    assert len(KEPT) > 55


def test_in_a_module_and_a_class_body():
    for code in ("x = make(); y = step(x)", "class A:\n  x = make(); y = step(x)\nx = A.x"):
        scope = {"make": make, "step": step}
        exec(code, scope)
        np.testing.assert_array_equal(scope["x"], MADE)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_under_monitoring():
    sys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, "test")
    try:
        before, made = overwritten()
    finally:
        sys.monitoring.free_tool_id(sys.monitoring.DEBUGGER_ID)
    assert place(made) != before
    before, made = overwritten()
    assert place(made) == before


def test_an_unknown_python_gives_nothing_up(monkeypatch):
    monkeypatch.setattr(caller, "_counts", lambda: None)
    before, made = overwritten()
    assert place(made) != before


def test_under_transformations_nothing_is_donated():
    def run():
        x = make()
        before = jax.vmap(step)(x), jax.jit(step)(x), jax.grad(lambda x: step(x).sum())(x)
        return x, before

    x, (doubled, again, gradient) = run()
    np.testing.assert_array_equal(x, MADE)
    np.testing.assert_array_equal(doubled, MADE * 2 + 1)
    np.testing.assert_array_equal(again, MADE * 2 + 1)
    np.testing.assert_array_equal(gradient, np.full(8, 2.0))


def test_the_reason_is_logged(caplog):
    with caplog.at_level("DEBUG", "jaxpr_opt.donation"):
        another_variable()
    assert "argument 0 is referred to elsewhere" in caplog.text


# ---------------------------------------------------------------- what it costs


def test_lines_of_python_do_not_grow_with_the_number_of_arrays(monkeypatch):
    """Of a call that has been made before: each array is asked, but not by a function of Python."""
    monkeypatch.setattr(caller, "_watched", lambda: False)

    events = []

    def run(count):
        state = {f"p{i}": make() for i in range(count)}
        state = update(state, 1.0)
        before = place(state["p0"])
        sys.setprofile(lambda frame, event, arg: events.append(event))
        state = update(state, 1.0)
        sys.setprofile(None)
        return before, place(state["p0"])

    counts = []
    for count in (5, 50):
        for _ in range(3):  # all that is found out once is known then
            events.clear()
            before, after = run(count)
            assert before == after
        counts.append((events.count("call"), events.count("c_call")))
    assert counts[0] == counts[1]
