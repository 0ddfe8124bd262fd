"""`--html`: a page of all programs, and beside it one of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxpr_opt import every_program, registry
from jaxpr_opt.html import page
from jaxpr_opt.html.markup import Markup, element
from jaxpr_opt.html.page import document
from jaxpr_opt.lint.result import plural
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.diff import diff_graphs
from jaxpr_opt.reports.figures import bytes_text
from jaxpr_opt.reports.report import advice, report
from jaxpr_opt.run.files import file_name
from jaxpr_opt.run.looked import Looked
from jaxpr_opt.run.table import TITLES, row, short
from jaxpr_opt.targets import TargetError


def write(found: Sequence[Looked], path: Path) -> str:
    """Write the pages; returns a line about that."""
    folder = path.with_name(f"{path.stem}_files")
    try:
        folder.mkdir(exist_ok=True)
        files = {each.checked.name: _of_program(each, folder) for each in found}
        text = document(f"{path.stem}: programs", list(_body(found, files)))
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TargetError(f"cannot write {error.filename}: {error.strerror}") from error
    total = sum(each.stat().st_size for each in folder.iterdir()) + path.stat().st_size
    return f"wrote {path.name} ({bytes_text(total)}, with {folder.name})"


def _of_program(each: Looked, folder: Path) -> str:
    """Write the page of one program; returns what it is called, seen from the first page."""
    program, name = each.largest, each.checked.name
    before, _ = observe.of_jaxpr(lambda: program.jaxpr, name)
    pipeline = registry.default_pipeline()
    after, journals = observe.of_jaxpr(
        lambda: every_program.optimized(program.jaxpr, pipeline, name) or program.jaxpr, name
    )
    made = report(name, diff_graphs(before, after), journals, advice(after))
    file = folder / f"{file_name(name)}.html"
    file.write_text(page(made, before, after, each.checked.findings), encoding="utf-8")
    return f"{folder.name}/{file.name}"


def _body(found: Sequence[Looked], files: dict[str, str]) -> Iterator[Markup]:
    yield element(
        "header",
        element("p", "jaxpr-opt run", class_="brand"),
        element("h1", "What was compiled"),
        element("p", plural(len(found), "function"), class_="aside"),
    )
    titles = [element("th", title) for title in ("program", *TITLES)]
    rows = [
        element(
            "tr",
            element(
                "td",
                element("a", element("code", each.checked.name), href=files[each.checked.name]),
                short(each.place),
            ),
            [element("td", cell) for cell in row(each)],
        )
        for each in found
    ]
    table = element("table", element("thead", element("tr", titles)), element("tbody", rows))
    yield element("main", element("section", element("div", table, class_="scroll")))
