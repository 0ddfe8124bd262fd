"""Run benchmarks by name, or all: tables for the terminal, JSON, on request those of docs/."""

from __future__ import annotations

import argparse
import importlib

from rich.console import Console

from bench.sweep import Options

BENCHMARKS = (
    "bounded_while", "ragged_rnn", "carried_arrays", "reassociate", "pipeline_share", "growth",
    "residuals", "corpus", "predictions", "while_gradients", "memory", "memory_unrolled",
    "frontier", "tutorial",
)  # fmt: skip


def main() -> None:
    """The command line of `python -m bench`."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--rounds", type=int, help="how often each program is timed")
    parser.add_argument(
        "--only", default="", help="programs whose group or name contains this text"
    )
    parser.add_argument(
        "--publish", action="store_true", help="write the tables and plots of docs/"
    )
    options = parser.parse_args(namespace=Options(above=[]))
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(
            f"no benchmark is called {', '.join(sorted(unknown))}: {', '.join(BENCHMARKS)}"
        )
    if options.publish and (options.quick or options.only):
        parser.error("--publish takes the whole benchmark: without --quick and --only")
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    for name in options.names or BENCHMARKS:
        importlib.import_module(f"bench.{name}").run(options, console)
    if options.above:
        raise SystemExit(f"above plain JAX: {len(options.above)} measurements, in red")


if __name__ == "__main__":
    main()
