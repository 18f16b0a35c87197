"""Messages that cannot be changed in place, so that a built prompt can share them with the state.

They are real dicts and lists, so SDKs and JSON writers take them; ``copy.deepcopy`` and ``dict()``
give plain ones that can be changed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from cacheprefix.errors import BodyError


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(f"this {type(self).__bases__[0].__name__} is shared with the conversation; change a copy.deepcopy")


class FrozenDict(dict[str, Any]):
    """A dict whose content cannot change; the slot ``view`` remembers what was read from it."""

    __slots__ = ("view",)
    view: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.view = None

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))


class FrozenList(list[Any]):
    """A list whose content cannot change."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(self),))


def freeze(value: Any, path: str) -> Any:
    """A frozen copy of a JSON value; raises ``BodyError`` for what JSON cannot hold (NaN, bytes, keys)."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BodyError(path, "NaN and infinity are not JSON; send text instead")
        return value
    if type(value) in (FrozenDict, FrozenList):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BodyError(path, f"keys must be text, found {type(key).__name__}")
        return FrozenDict({key: freeze(inner, f"{path}.{key}") for key, inner in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return FrozenList([freeze(inner, f"{path}[{n}]") for n, inner in enumerate(value)])
    raise BodyError(path, f"{type(value).__name__} is not JSON; send text or plain dicts and lists")
