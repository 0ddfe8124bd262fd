"""The reference pages, made of the documentation that the rules and passes carry themselves::

python -m jaxpr_opt.cli.reference        # writes docs/rules.md and docs/passes.md
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxpr_opt.cli.documentation import WHEN, Block, blocks, rooms, sentence, source
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.lint.rule import FAMILIES, Rule, capitalised, documentation, passages, rules, summary

NOTE = "<!-- Made by `python -m jaxpr_opt.cli.reference` from docstrings: edit those. -->"


def pages() -> dict[str, str]:
    """The pages by the names of their files."""
    made = {"rules.md": _rules(), "passes.md": _passes()}
    return {name: "\n".join(lines) + "\n" for name, lines in made.items()}


def _rules() -> Iterator[str]:
    yield from ("# Rules", "", NOTE, "")
    yield (
        "What [`jaxpr-opt lint`](lint.md) reports: each rule, an example, and what to write"
        " instead. `jaxpr-opt rule NAME` prints an entry of this page. A comment"
        " `# jaxpr-opt: ignore[NAME]` accepts a finding."
    )
    for digit, family in FAMILIES.items():
        members = [rule for rule in rules().values() if rule.code[3] == digit]
        if members:
            yield from ("", f"## {family.capitalize()}", "")
            yield from ("| rule | | on |", "|---|---|---|")
            for rule in members:
                link = f"[{rule.code}&nbsp;{rule.name}](#{rule.code.lower()}-{rule.name})"
                yield f"| {link} | {_cell(summary(rule))} | {'yes' if rule.default else ''} |"
            for rule in members:
                yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    state = "on by default" if rule.default else f"off by default: `--select {rule.code}`"
    yield from ("", f"### {rule.code} {rule.name}", "", f"*{rule.severity}, {state}*")
    for title, text in documentation(rule).items():
        heading = f"**{title}.** "
        for is_code, passage in passages(title, text):
            yield ""
            if is_code:
                yield from (f"**{title}**", "") if heading else ()
                yield from (f"```{_language(passage)}", passage, "```")
            else:
                first, *others = _prose(passage)
                yield f"{heading}{capitalised(first)}"
                yield from others
            heading = ""


def _language(code: str) -> str:
    """What colours a block."""
    return "toml" if code[0] == "[" else "console" if code.startswith("jaxpr-opt ") else "python"


def _passes() -> Iterator[str]:
    yield from ("# Passes", "", NOTE, "")
    yield (
        "What each pass of `optimize` does: before and after, its conditions, its cost. `jaxpr-opt"
        " passes NAME` prints an entry of this page. [The design](design.md) explains how passes"
        " work together. The tables are by folder; the entries are in the order in which passes"
        " are first tried."
    )
    passes = {each.name: each for each in registry.library_passes()}
    for room, members in rooms(passes.values()):
        yield from ("", f"**`{room.path}`** {room.about}", "", "| pass | |", "|---|---|")
        for each in members:
            says = room.laws.get(each.name) or sentence(each)
            yield f"| [{each.name}](#{each.name}) | {_cell(says)} |"
    yield from _order(list(passes.values()))
    for each in passes.values():
        yield from _pass(each)


def _order(passes: Sequence[Pass[Any]]) -> Iterator[str]:
    yield from ("", "## The order", "")
    yield (
        "Each stage of the pipeline runs to a fixpoint. Within a stage only these passes depend on"
        " the order; all others may change places."
    )
    yield from ("", "| pass | runs after | because |", "|---|---|---|")
    for each in passes:
        for first, why in each.after:
            yield f"| [{each.name}](#{each.name}) | [{first}](#{first}) | {_cell(why)} |"


def _pass(each: Pass[Any]) -> Iterator[str]:
    tidies = "; a clean-up pass" if each.cleanup else ""
    yield from ("", f"## {each.name}", "", f"*Runs {WHEN[each.phase]}{tidies}.*", "")
    yield from _prose(source(each))


def _prose(text: str) -> Iterator[str]:
    """A docstring as Markdown."""
    before: Block | None = None
    for block in blocks(text):
        if before is not None and not (before.marker and block.marker):
            yield ""
        before = block
        if block.verbatim:
            yield from ("```text", textwrap.dedent(block.text), "```")
        elif block.marker:
            marker = block.marker if block.marker[0].isdigit() else "-"
            letter = f"{block.marker} " if block.marker[0] == "(" else ""
            yield f"{' ' * block.indent}{marker} {letter}{block.text}"
        else:
            yield block.text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the pages into the folder that is named, or into docs."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
