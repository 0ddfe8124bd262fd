"""Random programs on 8 devices: ``python -m fuzz --sharded``.

Arrays are divided at random, by XLA (`auto`), by what types say (`explicit`), or by `shard_map`
over all axes (`manual`) or some (`partly`).  Compiled, the optimised program computes the same, its
collectives do not come to more, and its results are divided alike.

Costs are those of the device, as for a user; `--eager` sets them so that every sound rewrite pays.
Then XLA may add collectives which a loop that is large enough to be rewritten hides.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxpr_opt
from fuzz import check, corpus, lanes, mutations, programs, saved
from fuzz.eager import eager
from fuzz.epoch import silenced
from fuzz.finds import report
from fuzz.mutations.places import is_plain
from fuzz.source import UnprintableError, source
from jaxpr_opt import settings
from jaxpr_opt.bridge import compat
from jaxpr_opt.ir.exporter import evaluate, export
from jaxpr_opt.ir.graph import Graph, Scan
from tests.sharding.check import compare as compared
from tests.sharding.check import descent

KINDS = ("auto", "explicit", "manual", "partly")
DEVICES = 8
FILES, RECIPES, ON_DEVICES = 3, 8, 20
INVALID = (TypeError, ValueError, NotImplementedError, KeyError, RuntimeError, AssertionError)


def mesh(kind: str) -> Any:
    """The devices, along the axis that has a name in programs, and another."""
    of = AxisType.Explicit if kind == "explicit" else AxisType.Auto
    shape = (lanes.LANES, DEVICES // lanes.LANES)
    return jax.make_mesh(shape, (lanes.AXIS, "j"), axis_types=(of, of))


class Sharded:
    """Programs on several devices, one after the other."""

    def __init__(self, seed: int, number: int, folder: Path, costs: Any) -> None:
        self.seed, self.number, self.folder, self.costs = seed, number, folder, costs
        self.rng = random.Random(f"sharded {seed}:{number}")
        self.arrays = np.random.default_rng(self.rng.getrandbits(32))
        self.counts: collections.Counter[str] = collections.Counter()

    def run(self, count: int, aim: str | None = None) -> None:
        """Try that many programs that are valid; of one pass, if it is named."""
        with silenced(), self.costs, settings.override(strict=True):
            files = corpus.test_files()
            own = [f for f in files if aim and f.stem == f"test_{aim.replace('-', '_')}"]
            files = own or self.rng.sample(files, FILES)
            recipes = () if own else corpus.from_recipes(RECIPES, self.rng)
            pool = [*corpus.from_tests(files), *recipes]
            devices = [*programs.from_devices(ON_DEVICES, self.rng)]
            small = [s for s in pool if s.size < corpus.LARGEST // 4 and not s.is_double]
            if own:  # a pass that rounds may round these altogether otherwise
                small = [s for s in small if not check.has_narrow_floats(s.graph)]
            while sum(self.counts[f"programs {kind}"] for kind in KINDS) < count:
                kind = self.rng.choice(KINDS[:2] if own else KINDS)
                chosen = devices if kind in {"manual", "partly"} else small
                try:
                    self.one(kind, self.rng.choice(chosen))
                except Exception:  # noqa: BLE001 - a fault of the generator, to be read later
                    self.counts["broken"] += 1
                    name = f"broken_sharded_{self.seed}_{self.number}_{self.counts['broken']}.txt"
                    (self.folder / name).write_text(traceback.format_exc())

    def one(self, kind: str, parent: corpus.Seed) -> None:
        """Make a program of that kind, compile it twice, and compare."""
        bound = lanes.bound() if parent.lanes else contextlib.nullcontext()
        with bound:
            try:
                graph, names = mutations.mutated(parent.graph, self.rng, parent.lanes)
                draw = check.for_lanes if kind in {"manual", "partly"} else check.arguments
                drawn = draw(graph, self.arrays)[0]
                if parent.lanes and not self._ends(graph, drawn):
                    self.counts["invalid"] += 1
                    return
            except INVALID:
                self.counts["invalid"] += 1
                return
            seed = corpus.Seed(graph, f"{parent.origin} {'+'.join(names)}", lanes=parent.lanes)
            says = check.Difference("fault", f"{kind}: it hangs, or takes the process down")
            path = self._write(kind, seed, says)
        on = mesh(kind)
        with jax.set_mesh(on) if kind == "explicit" else contextlib.nullcontext():
            found = self._compare(kind, graph, drawn, on)
        path.unlink()
        if found is None:
            self.counts["invalid"] += 1
            return
        self.counts[f"programs {kind}"] += 1
        if found:
            self.counts["finds"] += 1
            self._write(kind, seed, check.Difference("values", f"{kind}: {found}"), "found")

    def _ends(self, graph: Graph, drawn: Sequence[Any]) -> bool:
        """Whether devices in step do not wait for each other forever, with these arguments: others
        may take other branches, with other collectives in them.
        """
        with contextlib.suppress(Exception):
            lanes.Lanes(graph)(drawn)
            return compat.check_jaxpr(export(graph)) is None
        return False

    def _compare(self, kind: str, graph: Graph, drawn: Sequence[Any], on: Any) -> str | None:
        """What differs; None if JAX does not compile the program as it is."""
        fun = _traced_again(graph)
        steps = min((op.length for op in graph.walk() if isinstance(op, Scan)), default=1)
        if kind in {"manual", "partly"}:
            fun, args = self._mapped(kind, fun, drawn, on)
        else:
            args = [self._put(x, on) for x in drawn]
        order = self.rng.choice(["values", "values", "inside", "outside"])
        if order != "values" and not any(jnp.issubdtype(x.dtype, jnp.floating) for x in args):
            order = "values"
        whole = descent(lambda *xs: _floats(fun(*xs))) if order != "values" else fun
        try:
            plain = jax.jit(whole).lower(*args).compile()
            want = plain(*args)
        except Exception:  # noqa: BLE001 - whatever JAX says, it is no program
            return None
        if not all(map(check.is_finite, want)):
            return None
        try:
            if order == "outside":
                ours = descent(lambda *xs: _floats(jaxpr_opt.optimize(fun)(*xs)))
            else:
                ours = jaxpr_opt.optimize(whole)
            optimised = jax.jit(ours).lower(*args).compile()
            self.counts["changed"] += _text(optimised) != _text(plain)
            return "; ".join(compared(plain, optimised, args, steps))
        except AssertionError as error:
            return f"{order}: {error}"
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the find
            return f"{order}: {type(error).__name__}: {error}"

    def _put(self, x: Any, on: Any, first: Sequence[Any] = ()) -> Any:
        """An array, divided at random along axes that can be."""
        left = [name for name in on.axis_names if name not in first]
        spec: list[Any] = list(first)
        for n in x.shape[len(first) :]:
            fits = [name for name in left if n and n % on.shape[name] == 0]
            name = self.rng.choice(fits) if fits and self.rng.random() < 0.6 else None
            left = [each for each in left if each != name]
            spec.append(name)
        return jax.device_put(x, NamedSharding(on, P(*spec)))

    def _mapped(self, kind: str, fun: Any, drawn: Sequence[Any], on: Any) -> Any:
        """The program on each device, and arguments with an axis for them."""

        def local(*xs: Any) -> Any:
            return [y[None] for y in fun(*(x[0] for x in xs))]

        axes = {lanes.AXIS} if kind == "partly" else {*on.axis_names}
        specs = tuple(P(lanes.AXIS) for _ in drawn)
        out = P(lanes.AXIS)
        mapped = jax.shard_map(
            local, mesh=on, in_specs=specs, out_specs=out, axis_names=axes, check_vma=False
        )
        return mapped, [self._put(x, on, [lanes.AXIS]) for x in drawn]

    def _write(
        self, kind: str, seed: corpus.Seed, found: check.Difference, what: str = "compiling"
    ) -> Path:
        name = f"{what}_sharded_{jax.__version__.replace('.', '_')}_{self.seed}_{self.number}"
        path = self.folder / f"{name}_{sum(self.counts.values())}.py"
        path.write_text(report(seed, check.whole("final"), found, seed.graph))
        return path


def _traced_again(graph: Graph) -> Any:
    """The program as a function that is traced where it is called; its results that are numbers."""

    names: dict[str, Any] = {}
    with contextlib.suppress(UnprintableError):  # its types are of no mesh, as they stand
        names = {**vars(saved), "kept": lambda x: x, "inf": np.inf, "nan": np.nan}
        exec(source(graph), names)

    def fun(*args: Any) -> list[Any]:
        written = names.get("program")
        outs = written(*args) if written else evaluate(graph.body, args, {})
        wanted = zip(graph.outputs, outs, strict=True)
        return [y for v, y in wanted if is_plain(v) and v.op is not None]

    return fun


def _text(compiled: Any) -> str:
    """What XLA compiles, without names and source lines."""
    return re.sub(
        r"(?m)^HloModule.*|, metadata=\{[^}]*\}|, origin=\{[^}]*\}", "", compiled.as_text()
    )


def _floats(outs: Sequence[Any]) -> Any:
    """What can be differentiated of results, in one array."""
    found = [y.astype(jnp.float32).sum() for y in outs if jnp.issubdtype(y.dtype, jnp.floating)]
    return jnp.stack([jnp.float32(0), *found])


def main(
    seed: int, number: int, count: int, folder: Path, aim: str | None, *, every_rewrite: bool
) -> None:
    """Try programs and write down how many."""
    folder.mkdir(parents=True, exist_ok=True)
    assert jax.device_count() == DEVICES, f"{jax.device_count()} devices: XLA_FLAGS were not read"
    each = Sharded(seed, number, folder, eager() if every_rewrite else contextlib.nullcontext())
    started, worked = time.monotonic(), time.process_time()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with contextlib.suppress(SystemExit):
        each.run(count, aim)
    done = {
        "jax": jax.__version__, "epoch": f"sharded {number}",
        "seconds": time.monotonic() - started, "cpu": time.process_time() - worked,
        "counts": each.counts, "kinds": {},
    }  # fmt: skip
    with (folder / "epochs.jsonl").open("a") as file:
        file.write(json.dumps(done) + "\n")
