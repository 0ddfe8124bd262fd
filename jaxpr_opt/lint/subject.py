"""A program as rules see it: as JAX traces it, as passes change it, and what its gradient stores.

Everything is made when it is first asked for, and once: a rule that needs the graph only costs no
pipeline.  Only shapes are traced; nothing is compiled, and no array is made.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jaxpr_opt.bridge import compat_call
from jaxpr_opt.donation.calling import Donating
from jaxpr_opt.donation.plan import donation
from jaxpr_opt.donation.strict import donated_arrays
from jaxpr_opt.errors import TargetError
from jaxpr_opt.frames import Frame, blame, is_machinery, name_of
from jaxpr_opt.insight.growth import Growth, growth
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.insight.liveness import peak_bytes
from jaxpr_opt.insight.saved import Saved, kept_bytes, saved
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.lint.modes import loss_argument, traceable
from jaxpr_opt.lint.options import Mode, Options
from jaxpr_opt.lint.parts import Earlier
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.account import PassReport, accounts
from jaxpr_opt.reports.residual_rows import Key, bytes_by_key
from jaxpr_opt.targets import Arguments, types


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the arguments grow with one number, and how fast the program may."""

    name: str
    """Of the number, as `T`."""
    sizes: tuple[int, ...]
    """The values it is looked at, in increasing order."""
    arguments: Callable[[int], Arguments]
    """The types of the arguments at one of them."""
    own: int | None = None
    """Of the target's own arguments; None where only the function that makes them knows."""
    limit: str = ""
    """The fastest growth that is fine, as `O(T)`; empty where growth is only reported."""


@dataclass(frozen=True, slots=True)
class Account:
    """What optimisation would do."""

    passes: tuple[PassReport, ...]
    """In order of first run."""
    failures: tuple[str, ...]
    """What went wrong in passes that failed."""


@dataclass(eq=False)
class Subject:
    """A function with the types of its arguments, and all that is known of its program."""

    name: str
    function: Callable[..., Any]
    """What is traced: in mode `gradient`, already the gradient."""
    args: tuple[Any, ...]
    """Types (`jax.ShapeDtypeStruct`) in place of arrays.

    Every figure but `growth` is about these, whatever the sizes of `scaling`.
    """
    kwargs: dict[str, Any] = field(default_factory=dict)
    mode: Mode = "as-is"
    options: Options = field(default_factory=Options)
    scaling: Scaling | None = None
    place: Frame | None = None
    """Where the function is defined: findings that are about nothing smaller are there."""
    before: Mapping[str, int] = field(default_factory=dict)
    """Figures of an earlier run, by name: `residual_bytes`, `peak_bytes`."""
    earlier: Earlier = field(default_factory=Earlier)
    """What those figures were made of."""

    @cached_property
    def graph(self) -> Graph:
        """The program that is compiled: as JAX makes it, but for what is optimised in it already.

        Shared by all rules, so it is only to be read.
        """
        return observe.as_it_is(self.function, self.args, self.kwargs)[0]

    @cached_property
    def failure(self) -> BaseException | None:
        """The exception that tracing the function raised; None if there is a program."""
        try:
            _ = self.graph
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- users' code raises what it likes
            return error
        return None

    @cached_property
    def _improved(self) -> tuple[Graph, Journal]:
        return observe.improved(self.graph)

    @property
    def optimized(self) -> Graph:
        """The program that `optimize` would make of this one."""
        return self._improved[0]

    @cached_property
    def report(self) -> Account:
        """The report of what each pass of `optimize` would do and would not do to the program,
        where.
        """
        journal = self._improved[1]
        return Account(accounts([journal]), tuple(message for _, message in journal.failures))

    @cached_property
    def saved(self) -> tuple[Saved, ...]:
        """The values that the backward half of the program keeps of the forward half."""
        return saved(self.graph)

    @cached_property
    def left(self) -> dict[Key, int]:
        """Bytes that the program keeps when it is optimised, by what tells values apart."""
        return bytes_by_key(saved(self.optimized))

    @cached_property
    def residual_bytes(self) -> int:
        """Of what a gradient keeps beyond what is there anyway."""
        return kept_bytes(self.graph)

    @cached_property
    def has_gradient(self) -> bool:
        """Whether the program computes a gradient."""
        return self.graph.has_gradient

    @cached_property
    def donated(self) -> list[bool]:
        """Which inputs of the program are donated, by the options of `jax.jit`."""
        count = len(self.graph.inputs)
        jitted = compat_call.jit_options(self.function)
        if jitted is None or self.mode == "gradient":
            return [False] * count
        donated = donated_arrays(jitted[1], self.args, self.kwargs)
        return donated if len(donated) == count else [False] * count

    @property
    def donating(self) -> Donating | None:
        """The function, if it is one that finds out by itself what to donate."""
        function = self.function
        while not isinstance(function, Donating) and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        return function if isinstance(function, Donating) else None

    @cached_property
    def donated_bytes(self) -> int:
        """Of the arguments that are donated and become results."""
        if self.mode == "gradient":
            return 0
        given = None if self.donating else [i for i, each in enumerate(self.donated) if each]
        return donation(self.graph, given).nbytes

    @cached_property
    def peak_bytes(self) -> int:
        """Of the most that is live at one moment, estimated."""
        return peak_bytes(self.graph)

    @cached_property
    def input_bytes(self) -> int:
        """Of all arguments."""
        return sum(value.nbytes for value in self.graph.inputs)

    @cached_property
    def growth(self) -> Growth | None:
        """How the program grows with the size that its arguments grow with; None if with none."""
        if self.scaling is None:
            return None
        return growth({size: self._graph_at(size) for size in self.scaling.sizes})

    def _graph_at(self, size: int) -> Graph:
        about = self.at(size)
        try:
            return about.graph
        except (Exception, SystemExit) as error:
            assert self.scaling is not None
            at = f"{self.scaling.name}={size}"
            raise TargetError(
                f"{self.name} raised while tracing at {at}: {blame(error)}"
            ) from error

    def is_worth(self, nbytes: int) -> bool:
        """Whether something of this size is worth a finding, here and by the options."""
        return nbytes >= max(self.options.min_bytes, self.options.min_share * self.input_bytes)

    def at(self, size: int) -> Subject:
        """The same function on arguments of another size: one subject for each, traced once."""
        assert self.scaling is not None
        if size not in self._by_size:
            args, kwargs = self.scaling.arguments(size)
            self._by_size[size] = replace(self, args=args, kwargs=kwargs)
        return self._by_size[size]

    @cached_property
    def _by_size(self) -> dict[int, Subject]:
        own = None if self.scaling is None else self.scaling.own
        return {} if own is None else {own: self}


def as_loss(about: Subject) -> Subject:
    """The gradient of a function that is a loss; the function itself if it is none."""
    if about.failure is not None:
        return about
    given = about.args, about.kwargs
    position = loss_argument(about.function, given, about.graph)
    if position is None:
        return about
    function, (args, kwargs) = traceable(about.function, given, "gradient", position)
    gradient = replace(about, function=function, args=args, kwargs=kwargs, mode="gradient")
    return about if gradient.failure is not None else gradient


def place(fun: Callable[..., Any]) -> Frame | None:
    """Where a function is defined; None for JAX's own."""
    fun = inspect.unwrap(fun)
    while isinstance(fun, functools.partial):
        fun = fun.func
    code = getattr(fun, "__code__", None) or getattr(type(fun).__call__, "__code__", None)
    if code is None or is_machinery(code.co_filename):
        return None
    return code.co_filename, code.co_firstlineno, code.co_name


def subject(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Subject:
    """A function as it is, with the arguments of a call; arrays are forgotten, not their types."""
    args, kwargs = types((args, kwargs))
    return Subject(name_of(fun), fun, args, kwargs, place=place(fun))
