"""One epoch: some of the seeds, and a few thousand programs made of them.

What an epoch does depends on its number and the seed of the run alone.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fuzz import check, corpus, finds, lanes, masks, mutations, programs, sizes, transformed
from fuzz.derive import derived
from fuzz.eager import eager
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.ir.graph import Graph, Phase

FILES = 5
"""Files of tests that an epoch takes programs from."""
RECIPES = 8
TRANSFORMED = 0.01
"""The part of programs that are differentiated and batched."""
LIBRARY = 6
DEVICES = 4
MASKS, MASKS_OF_ONE_PASS = 4, 24
SAVED = 3
"""Programs of one kind of difference that are saved."""
LONGEST = 900
"""Seconds of processor time after which an epoch is ended."""
SLOW = 20.0
"""Seconds of processor time after which a program is given up."""
PHASES: tuple[Phase, ...] = ("differentiable", "final")


class SlowError(BaseException):
    """A program takes too long."""


def _stop(*_: Any) -> None:
    raise SlowError


@dataclass
class Epoch:
    """The state of an epoch."""

    seed: int
    number: int
    folder: Path
    in_sizes: bool = False
    """Whether all programs have arrays of no elements, or of one."""
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    known: set[str] = field(default_factory=set)
    pool: list[corpus.Seed] = field(default_factory=list)
    tried: collections.Counter[corpus.Seed] = field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}:{self.number}")
        self.arrays = np.random.default_rng(self.rng.getrandbits(32))

    def run(self, programs: int, aimed: Pass | None = None, *, until_found: bool = False) -> None:
        """Try that many programs; of one pass, if it is given."""
        with silenced():
            self.pool = self._seeds(aimed)
            if self.in_sizes:
                made = (sizes.resized(s, self.rng) for s in self.pool for _ in range(2))
                self.pool = [s for s in made if s is not None]
            gc.freeze()  # what is made from now on is small, and there is much of it
            gc.set_threshold(50_000, 20, 20)
            with eager():
                for _ in range(programs):
                    self.one()
                    if until_found and self.counts["wrong"]:
                        return

    def _seeds(self, aimed: Pass | None) -> list[corpus.Seed]:
        files = corpus.test_files()
        self.rng.shuffle(files)
        if aimed is not None:
            own = [f for f in files if f.stem == f"test_{aimed.name.replace('-', '_')}"]
            if seeds := corpus.from_tests(own):
                made = masks.from_masks(MASKS_OF_ONE_PASS, self.rng)
                asks = aimed.name in masks.ASKING
                return [*seeds, *(dataclasses.replace(s, aimed_at=aimed) for s in made if asks)]
        seeds = [
            *corpus.from_tests(files[:FILES]),
            *corpus.from_recipes(RECIPES, self.rng),
            *programs.from_library(LIBRARY, self.rng),
            *programs.from_devices(DEVICES, self.rng),
            *masks.from_masks(MASKS, self.rng),
        ]
        return [dataclasses.replace(s, aimed_at=aimed) for s in seeds] if aimed else seeds

    def one(self) -> None:
        """Make a program, and check it; one that takes too long is written down."""
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, SLOW)
        try:
            self._one()
        except SlowError:
            self.counts["slow"] += 1
            where = traceback.format_exc()
            slow = check.Difference("fault", f"it takes over {SLOW:.0f} s\n{where}")
            self.kinds[f"slow: {self.plan.label}"] += 1
            self._write("slow", finds.report(self.current, self.plan, slow, self.current.graph))
        except Exception:  # noqa: BLE001 - a fault of the generator, to be read later
            self.counts["broken"] += 1
            self._write("broken", traceback.format_exc())
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _one(self) -> None:
        parent = self._parent()
        if self.rng.random() < 0.02:
            parent = self._derived(parent)
        around = lanes.bound() if parent.lanes else contextlib.nullcontext()
        with jax.enable_x64(parent.is_double), around:
            try:
                count = None if self.tried[parent] > 1 else 0
                graph, names = mutations.mutated(parent.graph, self.rng, parent.lanes, count)
            except (TypeError, ValueError, OverflowError, NotImplementedError):
                self.counts["not mutated"] += 1
                return
            origin = f"{parent.origin} {'+'.join(names)}"
            seed = corpus.Seed(graph, origin, parent.aimed_at, parent.lanes)
            plan = dataclasses.replace(self._plan(parent), lanes=parent.lanes)
            draw = check.for_lanes if parent.lanes else check.arguments
            self.counts["on devices"] += parent.lanes
            if self.rng.random() < TRANSFORMED:
                self._transformed(seed)
                return
            self._checked(seed, plan, draw(graph, self.arrays))

    def _parent(self) -> corpus.Seed:
        """A seed: half of the time the one of three that was tried least, else a small one."""
        if self.rng.random() < 0.5:
            found = min(self.rng.choices(self.pool, k=3), key=lambda s: self.tried[s])
        else:
            found = min(self.rng.choices(self.pool, k=2), key=lambda s: s.size)  # they are cheap
        self.tried[found] += 1
        return found

    def _derived(self, parent: corpus.Seed) -> corpus.Seed:
        made = None if parent.lanes else derived(parent, self.rng)  # its axis has a name here only
        if made is not None and made.size < corpus.LARGEST:
            self.pool.append(made)
            return made
        return parent

    def _plan(self, parent: corpus.Seed) -> check.Plan:
        phase, chance = self.rng.choice(PHASES), self.rng.random()
        if parent.aimed_at is not None and chance < 0.6:
            tidied = self.in_sizes or self.rng.random() < 0.7  # no pass asks whether a loop runs
            return check.alone(parent.aimed_at, phase, tidied=tidied)
        if chance < 0.8:
            each = self.rng.choice(list(registry.available().values()))
            return check.alone(each, phase, tidied=True)
        return check.whole(phase)

    def _checked(self, seed: corpus.Seed, plan: check.Plan, arguments: Any) -> None:
        self.counts["programs"] += 1
        self.current, self.plan = seed, plan
        outcome = check.check(seed.graph, plan, arguments)
        is_plain = outcome.fired and outcome.is_valid and not plan.lanes
        if is_plain and self.rng.random() < 0.003:
            outcome.difference = outcome.difference or self._compiled(seed, plan, arguments)
        self.counts["rewritten"] += bool(outcome.fired)
        aimed = seed.aimed_at
        self.counts["by the pass aimed at"] += aimed is not None and aimed.name in outcome.fired
        self.counts["not run"] += not outcome.is_valid
        self.counts["unconfirmed"] += outcome.unconfirmed
        new = {*outcome.fired, *outcome.reasons} - self.known
        if new and outcome.is_valid:
            self.known |= new
            self.pool.append(seed)
        if outcome.difference is not None:
            self._found(seed, plan, outcome.difference)

    def _transformed(self, seed: corpus.Seed) -> None:
        """Compare derivatives and batches of an optimised program."""
        way = transformed.way(self.rng, seed.lanes)
        self.counts["programs"] += 1
        self.current, self.plan = seed, dataclasses.replace(check.whole("final"), label=way.label)
        outcome = transformed.check_way(seed.graph, way, self.arrays)
        self.counts["transformed"] += outcome.is_valid
        self.counts["not run"] += not outcome.is_valid
        found = outcome.difference
        if found is None:
            return
        self.counts["finds"] += 1
        self.counts["wrong"] += found.kind != "fault"
        self.kinds[f"{way.label}: {found.key}"] += 1

        def fails(graph: Graph) -> bool:
            with contextlib.suppress(Exception):
                again = transformed.check_way(graph, way, np.random.default_rng(0)).difference
                return again is not None and again.kind == found.kind
            return False

        call = f"check_transformed(program, TYPES, {way.how!r}, {way.inside}, {way.seed})"
        self._save(finds.Find(seed, self.plan, found, call), fails)

    def _compiled(
        self, seed: corpus.Seed, plan: check.Plan, arguments: Any
    ) -> check.Difference | None:
        """How a program differs when it is compiled; if that hangs, its file is left behind."""
        hangs = check.Difference("compiled", "it hangs or takes the process down")
        path = self._write("compiling", finds.report(seed, plan, hangs, seed.graph))
        found = check.compiled(seed.graph, plan, arguments)
        path.unlink()
        self.counts["compiled"] += 1
        return found

    def _found(self, seed: corpus.Seed, plan: check.Plan, found: check.Difference) -> None:
        self.counts["finds"] += 1
        self.counts["wrong"] += found.kind != "fault"
        key = f"{plan.label}: {found.key}"
        self.kinds[key] += 1
        if self.kinds[key] > SAVED:
            return

        def fails(graph: Graph) -> bool:
            with contextlib.suppress(Exception):
                again = check.check(graph, plan, [found.args] if found.args else [])
                return again.difference is not None and again.difference.kind == found.kind
            return False

        self._save(finds.Find(seed, plan, found), fails)

    def _save(self, find: finds.Find, fails: Callable[[Graph], bool]) -> None:
        """Write down the smallest program that goes wrong; that takes time of its own."""
        signal.setitimer(signal.ITIMER_PROF, 2 * SLOW)
        self._write("found", finds.smallest(find, fails))

    def _write(self, kind: str, text: str) -> Path:
        name = f"{kind}_{jax.__version__.replace('.', '_')}_{self.seed}_{self.number}"
        path = self.folder / f"{name}_{self.counts['programs']}.py"
        path.write_text(text)
        return path


@contextlib.contextmanager
def silenced() -> Any:
    """What programs print is not read."""
    kept, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(null)


def main(
    seed: int,
    number: int,
    programs: int,
    folder: Path,
    aimed: Pass | None = None,
    until_found: bool = False,
    in_sizes: bool = False,
) -> None:
    """Run an epoch and write down what it did."""
    folder.mkdir(parents=True, exist_ok=True)
    epoch = Epoch(seed, number, folder, in_sizes)
    started, worked = time.monotonic(), time.process_time()
    for ends in (signal.SIGTERM, signal.SIGXCPU):
        signal.signal(ends, lambda *_: sys.exit())
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST + 60))
    with contextlib.suppress(SystemExit):
        epoch.run(programs, aimed, until_found=until_found)
    done = {
        "jax": jax.__version__, "epoch": number, "seconds": time.monotonic() - started,
        "cpu": time.process_time() - worked, "counts": epoch.counts, "kinds": epoch.kinds,
    }  # fmt: skip
    with (folder / "epochs.jsonl").open("a") as file:
        file.write(json.dumps(done) + "\n")
