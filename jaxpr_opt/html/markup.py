"""Elements from functions: whatever is not markup already is escaped, so nothing is forgotten."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content: TypeAlias = str | Iterable["Content"] | None
"""What goes into an element: text, markup, several of them; None is nothing."""


def element(name: str, /, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """`<name attribute="...">content</name>`.

    A trailing `_` of an attribute is dropped (`class_`), `_` in it is `-`; True stands for the bare
    attribute, False and None for none.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{together(content)}</{name}>")


VOID = frozenset({"input", "link", "meta"})
"""Elements without content."""


def scrolled(content: Content, label: str, class_: str = "scroll") -> Markup:
    """Content that may be wider than the page, as a region that keys can scroll."""
    return element("div", content, class_=class_, role="region", tabindex="0", aria_label=label)


def together(content: Content) -> Markup:
    """Contents one after the other."""
    match content:
        case None:
            return Markup()
        case Markup():
            return content
        case str():
            return Markup(html.escape(content, quote=False))
        case _:
            return Markup("".join(map(together, content)))
