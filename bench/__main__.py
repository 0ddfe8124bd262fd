"""Run benchmarks by name, or all: tables for the terminal, JSON, on request the plots of docs/."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from rich.console import Console

from bench import report
from bench.harness import measure

BENCHMARKS = ("bounded_while", "ragged_rnn", "pipeline_share")
DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    """The command line of `python -m bench`."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--rounds", type=int, help="how often each program is timed")
    parser.add_argument("--only", default="", help="programs whose name contains this text")
    parser.add_argument("--publish", action="store_true", help="write the plots of docs/")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(
            f"no benchmark is called {', '.join(sorted(unknown))}: {', '.join(BENCHMARKS)}"
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    for name in options.names or BENCHMARKS:
        run(name, options, console)


def run(name: str, options: argparse.Namespace, console: Console) -> None:
    """Measure one benchmark, show it, and write down its rows."""
    benchmark = importlib.import_module(f"bench.{name}")
    programs = [p for p in benchmark.programs(options.quick) if options.only in p.name]
    with console.status(name) as status:
        rows = measure(
            programs,
            rounds=options.rounds or (5 if options.quick else 20),
            setups=1 if options.quick else 2,
            progress=lambda text: status.update(f"{name}: {text}"),
        )
    report.show(console, name, rows)
    console.print(f"written to {report.save(name, rows)}", highlight=False)
    if options.publish and hasattr(benchmark, "publish"):
        benchmark.publish(rows, DOCS)


if __name__ == "__main__":
    main()
