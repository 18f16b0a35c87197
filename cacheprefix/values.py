"""Slotted dataclasses whose methods are written when a program first uses them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from cacheprefix.locks import RLock

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool, eq: bool = True, kw_only: bool = False) -> Any:
        """Do as ``dataclasses.dataclass`` does, which must be given ``slots=True``, but write no method yet.

        The standard library writes six methods of a frozen class and compiles them where the class is defined, which
        takes most of a millisecond. A session's modules define some 170 such classes, of which a
        program makes a third until its first answer: half of the processor time to that answer went into methods that
        nobody called (``python -m benchmarks.bench_import --against CHECKOUT`` compares).
        """

        def late(plain: type) -> type:
            return _late(plain, {"frozen": frozen, "slots": slots, "eq": eq, "kw_only": kw_only})

        return late


_FIRST = ("__init__", "__repr__", "__match_args__", "__dataclass_fields__", "__dataclass_params__")
_FROZEN = ("__setattr__", "__delattr__", "__getstate__", "__setstate__")
_lock = RLock()


def _late(plain: type, options: dict[str, bool]) -> type:
    """The class with slots for its fields, and in place of each method of a dataclass what writes them all."""
    fields = [name for name, kind in plain.__annotations__.items() if "ClassVar" not in str(kind)]
    has = {name: value for name, value in vars(plain).items() if name not in {*fields, "__dict__", "__weakref__"}}
    taken = {name for base in plain.__mro__ for name in getattr(base, "__slots__", ())}
    has["__slots__"] = tuple(name for name in fields if name not in taken)
    unwritten = _Unwritten(plain, options)
    named = [*_FIRST, *(_FROZEN if options["frozen"] else ()), *(("__eq__",) if options["eq"] else ())]
    if options["eq"] and "__eq__" not in has:
        # A class that compares by its fields and may change has none, as in the standard library.
        has.setdefault("__hash__", _AtFirstUse(unwritten, "__hash__") if options["frozen"] else None)
    for name in named:
        has.setdefault(name, _AtFirstUse(unwritten, name))
    unwritten.made = made = type(plain)(plain.__name__, plain.__bases__, has)
    made.__qualname__ = plain.__qualname__
    return made


class _Unwritten:
    """A class as it was written down, until the standard library has made a dataclass of it."""

    __slots__ = ("made", "options", "plain")

    def __init__(self, plain: type, options: dict[str, bool]) -> None:
        self.made, self.plain, self.options = plain, plain, options

    def write(self) -> None:
        """Let the standard library write the methods, once, and give them to the class that is in use."""
        with _lock:
            late = [name for name, value in vars(self.made).items() if isinstance(value, _AtFirstUse)]
            if late:
                written = vars(dataclasses.dataclass(**self.options)(self.plain))
                for name in late:
                    setattr(self.made, name, written[name])


class _AtFirstUse:
    """A method in whose place all methods of its class are written."""

    __slots__ = ("name", "unwritten")

    def __init__(self, unwritten: _Unwritten, name: str) -> None:
        self.unwritten, self.name = unwritten, name

    def __get__(self, one: object, kind: type) -> Any:
        self.unwritten.write()
        found = vars(self.unwritten.made)[self.name]
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, one, kind)
