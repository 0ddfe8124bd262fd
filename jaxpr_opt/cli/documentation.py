"""The documentation of passes, as the terminal shows it.

A pass is specified by the docstring of its file: prose, ``Before::`` and ``After::`` blocks,
numbered conditions.  Prose is filled to the width there is; blocks stay as they are.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxpr_opt.engine.interface import Pass

ITEM = re.compile(r"(?P<indent> *)(?P<marker>\d+\.|\([a-z0-9]\)|[-*]) +(?P<text>.*)")
LAW = re.compile(r"^`([a-z-]+)`  +(.*)$", re.MULTILINE)
WHEN = {
    "differentiable": "when traced and when lowered; the result may still be differentiated",
    "differentiated": "if the program computes a gradient, or is about to; and when lowered",
    "final": "when lowered: nothing differentiates the program any more",
}

CLEANUP = "tidies up in every stage; alone, it is no reason to change a program"


class Block(NamedTuple):
    """A paragraph, an item of a list (it has a marker), or lines to be left alone."""

    text: str
    indent: int = 0
    marker: str = ""
    verbatim: bool = False


def source(each: Pass[Any]) -> str:
    """The docstring of the pass's file; of its class where the file is about something else."""
    module = sys.modules[type(each).__module__]
    about_it = module.__name__.rpartition(".")[2] == each.name.replace("-", "_")
    return inspect.getdoc(module if about_it else type(each)) or ""


def sentence(each: Pass[Any]) -> str:
    """The first paragraph of what the pass does."""
    return " ".join(source(each).partition("\n\n")[0].split())


class Room(NamedTuple):
    """A folder of passes: where it is, what it is about, and its passes in a line each."""

    path: str
    about: str
    laws: dict[str, str]


def rooms(passes: Iterable[Pass[Any]]) -> list[tuple[Room, list[Pass[Any]]]]:
    """The passes by folder, the library's own folder first; what a folder is about is said in the
    docstring of its package.
    """
    by_package: dict[str, list[Pass[Any]]] = {}
    for each in passes:
        by_package.setdefault(type(each).__module__.rpartition(".")[0], []).append(each)
    ordered = sorted(by_package, key=lambda name: (name.count("."), name))
    return [(_room(name), by_package[name]) for name in ordered]


def _room(package: str) -> Room:
    doc = inspect.getdoc(sys.modules[package]) or ""
    about = " ".join(doc.partition("\n\n")[0].split())
    return Room(package.removeprefix("jaxpr_opt.").replace(".", "/"), about, dict(LAW.findall(doc)))


def to_dict(each: Pass[Any]) -> dict[str, Any]:
    """The pass for machines."""
    return {
        "pass": each.name,
        "phase": each.phase,
        "cleanup": each.cleanup,
        "does": sentence(each),
        "documentation": source(each),
    }


def contents(passes: Iterable[Pass[Any]]) -> RenderableType:
    """One entry a pass: name, phase and what it does; folder by folder."""
    shown: list[RenderableType] = [Text("When a pass runs", "bold")]
    shown += [Padding(_inline(f"{phase}: {when}."), (0, 0, 0, 2)) for phase, when in WHEN.items()]
    shown.append(Padding(_inline(f"clean-up: {CLEANUP}."), (0, 0, 0, 2)))
    for room, members in rooms(passes):
        shown += [Text(), Text(f"{room.path}: ", "bold underline").append(room.about)]
        for each in members:
            phase = each.phase + (", clean-up" if each.cleanup else "")
            shown.append(Text(each.name, "bold").append(f"  {phase}", "not bold dim"))
            shown.append(Padding(_inline(sentence(each)), (0, 0, 0, 2)))
    return Group(*shown)


def page(each: Pass[Any]) -> RenderableType:
    """Everything about one pass."""
    shown: list[RenderableType] = [Text(each.name, "bold")]
    shown.append(Text(f"Runs {WHEN[each.phase]}.", "dim"))
    return Group(*shown, Text(), *prose(source(each)))


def prose(doc: str) -> Iterator[RenderableType]:
    """A docstring, with an empty line between blocks, but not between the items of a list."""
    before: Block | None = None
    for block in blocks(doc):
        if before is not None and not (before.marker and block.marker):
            yield Text()
        before = block
        yield _rendered(block)


def code(text: str) -> RenderableType:
    """Lines to be left alone."""
    return _rendered(Block(text, verbatim=True))


def _rendered(block: Block) -> RenderableType:
    if block.verbatim:
        return Lines(block.text)
    text = _inline(block.text)
    if not block.marker:
        return Padding(text, (0, 0, 0, block.indent))
    item = Table.grid(padding=(0, 1, 0, 0))
    item.add_column(no_wrap=True)
    item.add_column()
    item.add_row(block.marker, text)
    return Padding(item, (0, 0, 0, block.indent))


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of code; what does not fit continues further to the right than its line begins."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.text.splitlines():
            further = " " * (_indent(line) + 4)
            parts = textwrap.wrap(
                line, options.max_width, subsequent_indent=further, break_on_hyphens=False
            )
            yield Text("\n".join(parts), "cyan", overflow="fold")


def _inline(text: str) -> Text:
    shown = Text(text)
    shown.highlight_regex(r"`+[^`]+`+", "cyan")
    return shown


def blocks(doc: str) -> Iterator[Block]:
    """Take a docstring apart."""
    lines = doc.expandtabs().splitlines()
    while lines:
        if not lines[0].strip():
            del lines[0]
            continue
        taken = _item(lines) or _paragraph(lines)
        yield taken
        if taken.text.endswith(":") and lines and not lines[0].strip():
            body = _verbatim(lines)
            if body:
                yield Block(body, verbatim=True)


def _item(lines: list[str]) -> Block | None:
    """Take a marked item and its continuation lines, which are indented more than its marker."""
    match = ITEM.fullmatch(lines[0])
    if match is None:
        return None
    del lines[0]
    indent, text = len(match["indent"]), [match["text"]]
    while lines and _indent(lines[0]) > indent and not ITEM.fullmatch(lines[0]):
        text.append(lines.pop(0))
    return Block(" ".join(" ".join(text).split()), indent, match["marker"])


def _paragraph(lines: list[str]) -> Block:
    indent, text = _indent(lines[0]), [lines.pop(0)]
    while lines and lines[0].strip() and not ITEM.fullmatch(lines[0]):
        text.append(lines.pop(0))
    filled = " ".join(" ".join(text).split())
    return Block(filled.removesuffix(":") if filled.endswith("::") else filled, indent)


def _verbatim(lines: list[str]) -> str:
    """Take the indented lines that follow a ``::``, blank ones included."""
    taken = list(itertools.takewhile(lambda line: _indent(line) or not line.strip(), lines))
    del lines[: len(taken)]
    return "\n".join(taken).strip("\n")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
