"""``python -m fuzz``: epochs of random programs, in processes of their own, until time is up.

What has been done is in a folder (``.fuzz``): run again, it goes on from there.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fuzz import broken

FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
    "--xla_cpu_collective_call_terminate_timeout_seconds=120",
)
DEVICES = {"XLA_FLAGS": " ".join(FLAGS)}
"""The environment of an epoch on 8 devices; one that deadlocks is ended."""

TIMEOUT = 3600.0
"""Seconds after which an epoch is ended: it hangs; of processor time it has less (`fuzz.epoch`)."""


def main() -> None:
    """Run epochs, one Python after the other, and print what they found."""
    args = _arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.epoch is not None:
        from fuzz import epoch
        from jaxpr_opt.engine import registry

        if args.sharded:
            from fuzz import sharded

            costs = {"every_rewrite": args.eager}
            sharded.main(args.seed, args.epoch, args.programs, args.folder, args.aim, **costs)
            return
        if args.jumps:
            from fuzz import jumps

            jumps.main(args.seed, args.epoch, args.programs, args.folder)
            return
        aimed = registry.named(args.aim) if args.aim else None
        how = {"until_found": args.until_found, "in_sizes": args.sizes}
        epoch.main(args.seed, args.epoch, args.programs, args.folder, aimed, **how)
        return
    if args.mutants is not None:
        survived = broken.run(broken.named(args.mutants), args.python[0], args.programs, args.seed)
        sys.exit(bool(survived))
    deadline = time.monotonic() + 60 * args.minutes
    running: dict[subprocess.Popen[bytes], float] = {}
    number = _next_epoch(args.folder)
    while time.monotonic() < deadline or running:
        while len(running) < args.processes and time.monotonic() < deadline:
            python = args.python[number % len(args.python)]
            running[_started(python, number, args)] = time.monotonic() + TIMEOUT
            number += 1
        time.sleep(1)
        for process in list(running):
            if process.poll() is not None:
                del running[process]
                print(_line(args.folder), flush=True)
            elif time.monotonic() > running[process]:
                process.terminate()
                del running[process]
                print(f"an epoch took over {TIMEOUT:.0f} s", flush=True)
    print(summary(args.folder))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to start epochs")
    parser.add_argument("--programs", type=int, default=3000, help="programs of an epoch")
    parser.add_argument("--processes", type=int, default=1, help="epochs at a time")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="state and finds")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="used in turn")
    parser.add_argument("--epoch", type=int, help="run only this one, here")
    parser.add_argument("--sharded", action="store_true", help="on 8 devices, compiled")
    parser.add_argument("--jumps", action="store_true", help="gradients of what jumps, compiled")
    parser.add_argument("--sizes", action="store_true", help="arrays of no elements and of one")
    parser.add_argument("--eager", action="store_true", help="sharded: every sound rewrite pays")
    parser.add_argument("--aim", help="the pass that all programs are made for")
    parser.add_argument("--until-found", action="store_true", help="end with the first wrong value")
    parser.add_argument(
        "--mutants", nargs="*", metavar="PASS", help="try to find conditions broken by hand"
    )
    return parser.parse_args()


def _started(python: str, number: int, args: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [
        python,
        "-W",
        "ignore",
        "-m",
        "fuzz",
        "--epoch",
        str(number),
        "--seed",
        str(args.seed),
    ]
    command += ["--programs", str(args.programs), "--folder", str(args.folder)]
    command += ["--aim", args.aim] * bool(args.aim) + ["--until-found"] * args.until_found
    command += ["--jumps"] * args.jumps + ["--sizes"] * args.sizes
    command += ["--sharded"] * args.sharded + ["--eager"] * args.eager
    (args.folder / "next").write_text(str(number + 1))
    return subprocess.Popen(command, env={**os.environ, **DEVICES} if args.sharded else None)


def _next_epoch(folder: Path) -> int:
    kept = folder / "next"
    return int(kept.read_text()) if kept.exists() else 0


def epochs(folder: Path) -> list[dict[str, Any]]:
    """What the epochs so far did."""
    kept = folder / "epochs.jsonl"
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def _line(folder: Path) -> str:
    done = epochs(folder)
    if not done:
        return "an epoch ended without a word"
    last = done[-1]
    rate = last["counts"].get("programs", 0) / max(last["cpu"], 1e-9)
    counts = ", ".join(f"{n} {what}" for what, n in last["counts"].items())
    return f"epoch {last['epoch']}, JAX {last['jax']}: {counts}; {rate:.0f} programs a second"


def summary(folder: Path) -> str:
    """How many programs were tried on each version of JAX, and what they found."""
    counts: dict[str, collections.Counter[str]] = {}
    kinds: collections.Counter[str] = collections.Counter()
    for each in epochs(folder):
        counts.setdefault(each["jax"], collections.Counter()).update(each["counts"])
        kinds.update({f"JAX {each['jax']}, {key}": n for key, n in each["kinds"].items()})
    lines = [
        f"JAX {jax}: " + ", ".join(f"{n} {what}" for what, n in c.items())
        for jax, c in sorted(counts.items())
    ]
    return "\n".join([*lines, *(f"{n:6d} {key}" for key, n in kinds.most_common())])


if __name__ == "__main__":
    main()
