"""The guard between JAX and this library.

JAX's internals change with every version, and that must not break a user's program. All of our code
that JAX calls, when a program is traced, transformed or lowered, runs behind this guard. If our
code fails, JAX gets the plain program instead. An exception that the plain program raises, too, is
the user's, and passes unchanged. One that it does not raise is ours. Then the engine is tried on a
small program that uses a bit of everything (`jaxpr_opt.boundary.trial`):

* if that fails, too, this JAX is unknown: the guard shuts for good, nothing is optimised any more,
  and a single warning says so;
* if it works, the one program is left unchanged, and a warning names it.

In strict mode every failure raises.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import jax

from jaxpr_opt import settings
from jaxpr_opt.bridge.interpreter_stack import uncollected

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

KNOWN = ((0, 10, 2), (0, 13))
"""The versions of JAX this library is tested with, from the first up to before the second.  On
others the engine is tried before it is used."""

_PLAIN = (RecursionError, MemoryError)
"""Errors that say nothing of JAX."""


class _State:
    """What is known of the installed JAX, in this process."""

    works: bool | None = None
    """Whether the engine works with it; None as long as nobody has asked."""
    told: set[str]
    """What has been warned of."""

    def __init__(self) -> None:
        self.works, self.told = None, set()


_state = _State()


def is_open() -> bool:
    """Whether the engine works with the installed JAX; warns once where it does not."""
    if _state.works is None:
        _state.works = True  # as long as it is tried, which asks, too
        error = _import() or (None if _is_known(jax.__version_info__) else _tried())
        if error is not None:
            shut(error)
    return _state.works


def shut(error: Exception) -> None:
    """Optimise nothing any more, and say why."""
    if settings.current().strict:
        _state.works = None
        raise error
    _state.works = False
    _warn(
        f"jaxpr_opt does not work with jax {jax.__version__}; nothing is optimised:"
        f" {_described(error)}"
    )


def is_of_symbols(error: BaseException | None) -> bool:
    """Whether something failed as it depends on a size that is a symbol (`jax.export`): that is no
    reason for a warning.
    """
    while error is not None and not isinstance(error, jax.errors.InconclusiveDimensionOperation):
        error = error.__cause__
    return error is not None


def failed(error: Exception, message: str, *, again: bool = False) -> None:
    """Say that something of ours failed, or shut the guard if everything does.

    `again`: say so each time, and not only once of each error.
    """
    if is_of_symbols(error):
        return
    if settings.current().strict:
        raise error
    if not is_open():
        return
    known = _described(error) in _state.told
    trouble = None if known or isinstance(error, _PLAIN) else _of_jax(error) or _tried()
    if trouble is not None:
        shut(trouble)
    elif again or not known:
        _state.told.add(_described(error))
        _warn(f"jaxpr_opt: {message or f'a program was left unchanged: {_described(error)}'}")


def unknown(said: str) -> None:
    """Say once in a process that JAX has ops that are not as we know them."""
    if settings.current().strict:
        raise UnknownJaxError(said)
    if "unknown" not in _state.told and _state.works is not False:
        _state.told.add("unknown")
        _warn(
            f"jaxpr_opt does not know all of jax {jax.__version__}: {said};"
            " its ops are left unchanged"
        )


def attempt(ours: Callable[[], T], plain: Callable[[], T], what: str = "a program") -> T:
    """The result of `ours`; where that fails, or the guard is shut, that of `plain`."""
    if not is_open():
        return plain()
    try:
        return ours()
    except Exception as error:  # noqa: BLE001  the user's is raised
        trouble = not_ours(error)
    return instead(trouble, plain, what)


def not_ours(error: Exception) -> Exception:
    """What `attempt` asks of an error: raise it, if the user is to see it."""
    if settings.current().strict or hasattr(error, _USERS):
        raise error
    return error


def instead(trouble: Exception, plain: Callable[[], T], what: str) -> T:
    """What `attempt` gives after an error: the result of `plain`."""
    try:
        result = plain()  # what it raises is not ours
    except RecursionError as error:  # in each of the programs around it, twice as often
        raise users(error)  # noqa: B904  it is the same error
    failed(trouble, f"{what} was left unchanged: {_described(trouble)}")
    return result


def users(error: E) -> E:
    """The error, to be raised: the user is to see it, nothing has failed."""
    setattr(error, _USERS, True)
    return error


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Programs or functions of the user's run here: what they raise passes as it is."""
    _nest.depth = depth() + 1
    try:
        yield
    except Exception as error:
        with contextlib.suppress(AttributeError):
            users(error)
        raise
    finally:
        _nest.depth -= 1


_nest = threading.local()


def depth() -> int:
    """How many of the user's functions run, each called by the one before."""
    return getattr(_nest, "depth", 0)


_USERS = "_jaxpr_opt_users"
"""The mark of an exception that passes as it is."""


class UnknownJaxError(Exception):
    """JAX is not as this version of jaxpr_opt knows it."""


def _is_known(version: Sequence[int]) -> bool:
    first, end = KNOWN
    return first <= tuple(version) < end


def _import() -> Exception | None:
    """Import the engine; the error if that fails."""
    try:
        with uncollected():
            for module in ("jaxpr_opt.boundary.rules", "jaxpr_opt.boundary.wrapping"):
                importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  whatever an unknown JAX makes of it
        return error
    return None


def _tried() -> Exception | None:
    """Try the engine; the error if that fails."""
    try:
        with settings.override(strict=True, check=False, verify=False):
            importlib.import_module("jaxpr_opt.boundary.trial").run()
    except Exception as error:  # noqa: BLE001  whatever an unknown JAX makes of it
        return error
    return None


def _of_jax(error: BaseException) -> Exception | None:
    """The first cause of an error, if JAX is to blame: where we ask it for something, it has no
    such name, wants other arguments or gives other results.
    """
    while error.__cause__ is not None and type(error).__module__.startswith("jaxpr_opt."):
        error = error.__cause__  # of errors of JAX the cause is where an operation comes from
    frames = list(traceback.walk_tb(error.__traceback__))
    place = Path(frames[-1][0].f_code.co_filename) if frames else Path()
    asked = place.parent == Path(__file__).parent and place.name.startswith("compat")
    blamed = asked and isinstance(error, Exception) and not isinstance(error, AssertionError)
    return error if blamed else None  # type: ignore[return-value]


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
