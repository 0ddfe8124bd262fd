"""Rules: what they are, how they are documented, and where they are found.

A rule is a class in a module of `jaxpr_opt.lint.rules`; its docstring is its documentation, which
`jaxpr-opt rule` prints and the reference page is made of::

    @register
    @dataclass(frozen=True, slots=True)
    class StackedLoopInvariant(Rule):
        '''What: a value that is the same in every step of a loop is stored once per step.

        Why: ...

        Example::

            code that has it

        Instead::

            code that has not

        Thread: https://github.com/jax-ml/jax/issues/...
        '''

        code = "JXO101"
        name = "stacked-loop-invariant"

        def check(self, subject: Subject) -> Iterator[Finding]:
            yield self.finding(subject, says=..., reason=..., fix=..., frame=...)
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from jaxpr_opt.errors import nearest
from jaxpr_opt.frames import Frame
from jaxpr_opt.lint.finding import SEVERITIES, Finding, Severity
from jaxpr_opt.lint.subject import Subject

SECTIONS = ("What", "Why", "Example", "Instead", "Thread")
"""What the documentation of a rule consists of, in this order."""
CODE = frozenset({"Example", "Instead"})
"""Those that are code, with a word about it below where it needs one."""
FAMILIES: Mapping[str, str] = {
    "0": "comments",
    "1": "residuals",
    "2": "buffers",
    "3": "control flow",
    "4": "rematerialization",
    "5": "donation",
    "6": "growth and budgets",
}
"""What rules are about, by the first digit of their codes."""

LISTED = ": `jaxpr-opt rule` lists them"
"""The end of a message about an unknown rule that is like none."""

_CODE = re.compile(r"JXO[0-6]\d\d")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_HEADING = re.compile(rf"({'|'.join(SECTIONS)})::?(?:\s+(.*))?")


class Rule(ABC):
    """Looks at a program, and says what is worth changing in it; it changes nothing."""

    code: ClassVar[str]
    """`JXO` and three digits, the first of which is the family; it is never given to another."""
    name: ClassVar[str]
    """In kebab-case; what users write."""
    default: ClassVar[bool] = True
    """Whether it runs unless told otherwise: only what is always worth acting on does."""
    severity: ClassVar[Severity] = "warning"
    subsumes: ClassVar[frozenset[str]] = frozenset()
    """Codes of rules that see the same from further away: one problem is one finding, so where this
    rule names a line, they do not."""

    @abstractmethod
    def check(self, subject: Subject) -> Iterator[Finding]:
        """Everything the rule finds in a program."""

    def explain(self, subject: Subject) -> Iterator[Finding]:
        """The findings of the rule in a function that could not be traced: see its `failure`."""
        del subject
        yield from ()

    def finding(
        self,
        subject: Subject,
        *,
        says: str,
        reason: str,
        fix: str,
        frame: Frame | None,
        **details: Any,
    ) -> Finding:
        """A finding of this rule; `details` are the fields of `Finding` that have a default."""
        return Finding(
            self.code,
            self.name,
            self.severity,
            subject.name,
            says,
            reason,
            fix,
            frame,
            **details,
        )


Class = TypeVar("Class", bound=type[Rule])
_registered: dict[str, Rule] = {}


def register(cls: Class) -> Class:
    """Add a rule to those `rules` returns.

    Raises:
      ValueError: its code or name is malformed or taken, or its docstring lacks a section.
    """
    who = f"the rule {cls.__name__}"
    if not _CODE.fullmatch(cls.code):
        raise ValueError(f"{who} has the code {cls.code!r}: expected JXO and three digits")
    if not _NAME.fullmatch(cls.name):
        raise ValueError(f"{who} is called {cls.name!r}: expected words-with-dashes")
    if cls.severity not in SEVERITIES:
        raise ValueError(
            f"{who} has severity {cls.severity!r}: expected one of {', '.join(SEVERITIES)}"
        )
    for other in _registered.values():
        if cls.code == other.code or cls.name == other.name:
            raise ValueError(f"{who} and {type(other).__name__} have the same code or name")
    documentation(cls)
    _registered[cls.code] = cls()
    return cls


@functools.cache
def rules() -> dict[str, Rule]:
    """Every rule by its code, in order of codes."""
    families = importlib.import_module("jaxpr_opt.lint.rules")
    for module in pkgutil.iter_modules(families.__path__, f"{families.__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(_registered.items()))


def named(name: str) -> Rule:
    """The rule of this code or name.

    Raises:
      ValueError: there is none.
    """
    for rule in rules().values():
        if name.upper() == rule.code or name.replace("_", "-").lower() == rule.name:
            return rule
    known = [known for rule in rules().values() for known in (rule.code, rule.name)]
    raise ValueError(f"there is no rule {name!r}{nearest(name, known, LISTED)}")


def documentation(rule: Rule | type[Rule]) -> dict[str, str]:
    """The sections of a rule's docstring by their names, without indentation.

    Raises:
      ValueError: one is missing, empty, twice there, or out of order.
    """
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    cls = rule if isinstance(rule, type) else type(rule)
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        if (heading := _HEADING.fullmatch(line)) is None:
            lines.append(line)
        else:
            lines = found.setdefault(heading[1], [])
            lines.append(heading[2] or "")
    sections = {
        title: textwrap.dedent("\n".join(body)).strip("\n") for title, body in found.items()
    }
    if tuple(found) != SECTIONS or not all(sections.values()):
        raise ValueError(
            f"the docstring of {cls.__name__} needs the sections {', '.join(SECTIONS)},"
            f" in this order; it has {', '.join(found) or 'none'}"
        )
    return sections


def passages(title: str, text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a section, each with whether it is code."""
    if title not in CODE or not text.startswith(" "):
        yield title in CODE, text
        return
    paragraphs = text.split("\n\n")  # next to prose, code is what is indented
    for is_code, group in itertools.groupby(paragraphs, lambda each: each.startswith(" ")):
        yield is_code, textwrap.dedent("\n\n".join(group))


def summary(rule: Rule) -> str:
    """The first sentence of the rule's documentation."""
    paragraph = " ".join(documentation(rule)["What"].partition("\n\n")[0].split())
    return capitalised(re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraph)[0])


def capitalised(text: str) -> str:
    """A sentence that begins with a capital, unless it begins with an address."""
    return text if text.startswith("http") else f"{text[0].upper()}{text[1:]}"
