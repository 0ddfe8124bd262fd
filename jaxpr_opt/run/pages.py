"""`--html`: a page of all programs, and one for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from jaxpr_opt import every_program
from jaxpr_opt.engine import registry
from jaxpr_opt.errors import TargetError
from jaxpr_opt.html import notes, page
from jaxpr_opt.html.markup import Markup, element
from jaxpr_opt.html.page import document
from jaxpr_opt.html.places import name
from jaxpr_opt.printing import plural
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.diff import diff_graphs
from jaxpr_opt.reports.report import advice, report
from jaxpr_opt.run.files import file_name
from jaxpr_opt.run.recorder import Recorder
from jaxpr_opt.run.summaries import Summary
from jaxpr_opt.run.table import Sheet, findings, of_libraries, short, shown_path
from jaxpr_opt.sizes import bytes_text


def write(sheet: Sheet, recorder: Recorder, path: Path) -> str:
    """Write the pages; returns a line about that."""
    folder = path.with_name(f"{path.stem}_files")
    try:
        folder.mkdir(exist_ok=True)
        files = {each.checked.name: _of_program(each, folder) for each, _ in sheet.rows}
        text = document(f"{path.stem}: programs", list(_body(sheet, recorder, files)))
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TargetError(f"cannot write {error.filename}: {error.strerror}") from error
    total = sum(each.stat().st_size for each in folder.iterdir()) + path.stat().st_size
    return f"wrote {shown_path(path)} ({bytes_text(total)}, with {folder.name})"


def _of_program(each: Summary, folder: Path) -> str:
    """Write the page of one program; returns what it is called, seen from the first page."""
    program, called = each.largest, each.checked.name
    before, _ = observe.of_jaxpr(lambda: program.jaxpr, called)
    pipeline = registry.default_pipeline()
    after, journals = observe.of_jaxpr(
        lambda: every_program.optimized(program.jaxpr, pipeline, called) or program.jaxpr, called
    )
    made = report(called, diff_graphs(before, after), journals, advice(after))
    file = folder / f"{file_name(called)}.html"
    file.write_text(page(made, before, after, each.checked.findings), encoding="utf-8")
    return f"{folder.name}/{file.name}"


def _body(sheet: Sheet, recorder: Recorder, files: Mapping[str, str]) -> Iterator[Markup]:
    found = [each for each, _ in sheet.rows]
    count = len(findings(found))
    compiled = f"{plural(len(found), 'function')} compiled"
    verdict = plural(count, "finding") if count else "no finding"
    others = of_libraries(recorder)
    yield element(
        "header",
        element("p", "jaxpr-opt run", class_="brand"),
        element("h1", f"{compiled}, {verdict}.", class_="verdict"),
        element("p", f"And {others}.", class_="aside") if others else None,
    )
    sections = [_findings(each, files[each.checked.name]) for each in found]
    yield element("main", element("section", _table(sheet, files)), sections)


def _table(sheet: Sheet, files: Mapping[str, str]) -> Markup:
    titles = [element("th", title, class_="number") for title in sheet.titles if title]
    rows = [
        element("tr", _name(each, files), list(_cells(sheet.titles, cells)))
        for each, cells in sheet.rows
    ]
    head = element("thead", element("tr", element("th", "program"), titles))
    return element("table", head, element("tbody", rows), class_="programs")


def _name(each: Summary, files: Mapping[str, str]) -> Markup:
    link = element("a", element("code", each.checked.name), href=files[each.checked.name])
    return element("th", link, element("small", short(each.place)))


def _cells(titles: Sequence[str], cells: Sequence[str]) -> Iterator[Markup]:
    """Figures, each with its title, which stands beside it where there is no room for columns.

    What has no title belongs to the figure before it.
    """
    for (title, cell), (beside, more) in pairwise([*zip(titles, cells, strict=True), ("end", "")]):
        if title:
            ratio = [" ", element("b", more)] if more and not beside else None
            yield element("td", element("span", cell, ratio), class_="number", data_title=title)


def _findings(each: Summary, file: str) -> Markup | None:
    """The findings in a program, with a link to its page, where the lines are."""
    if not (found := findings([each])):
        return None
    noted = [
        (note, element("a", name(note.frame), href=file) if note.frame else None)
        for note in notes.of_findings(found)
    ]
    return element(
        "section",
        element("h2", "In ", element("code", each.checked.name)),
        element(
            "ul", [element("li", note.markup(where)) for note, where in noted], class_="findings"
        ),
    )
