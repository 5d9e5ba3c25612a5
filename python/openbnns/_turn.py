"""Whose turn it is: objects with memory of their own that threads share.

Calls that only read what an object has learned wait for each other. A call that changes it, or
leaves something for a later one, is alone: it waits for nobody, and nobody for it. Who meets
another call then gets a sentence, because waiting might take as long as a training does, or for
ever where each thread waits for the other. Calls within a call of the same thread go through.
"""

from __future__ import annotations

import os
import threading
import weakref

from ._errors import BNNSError, LayerApplyError

_LOOK = 0.01  # seconds after which a call that waits looks whether somebody is alone now


class _State:
    __slots__ = ("__weakref__", "alone", "error", "lock", "name")

    def __init__(self, name: str, error: type[BNNSError]) -> None:
        self.name, self.error = name, error
        self.lock = threading.RLock()
        self.alone = 0  # calls within each other that are; changed by who has the lock

    def refused(self, wanted: str) -> BNNSError:
        return self.error(f"[{self.name}] threads: expected {wanted}; got one on another thread")


class _Shared:
    __slots__ = ("_state",)

    def __init__(self, state: _State) -> None:
        self._state = state

    def __enter__(self) -> None:
        state = self._state
        while not state.lock.acquire(False):
            if state.alone:
                raise state.refused("no call under way that changes it, such as training")
            if state.lock.acquire(timeout=_LOOK):
                break

    def __exit__(self, *_: object) -> None:
        self._state.lock.release()


class _Alone(_Shared):
    __slots__ = ()

    def __enter__(self) -> None:
        state = self._state
        if not state.lock.acquire(False):
            raise state.refused("no other call under way when one changes it, such as training")
        state.alone += 1

    def __exit__(self, *_: object) -> None:
        self._state.alone -= 1
        self._state.lock.release()


class Turn:
    """The turns of one object: ``with turn.shared:`` around calls that may wait for each other,
    ``with turn.alone:`` around those that meet nobody. name: of the object, for messages."""

    __slots__ = ("_given", "alone", "shared")

    def __init__(self, name: str, error: type[BNNSError] = LayerApplyError) -> None:
        self._given = name, error
        state = _State(name, error)
        self.shared, self.alone = _Shared(state), _Alone(state)
        with _adding:
            _states.add(state)

    def __reduce__(self) -> tuple[type[Turn], tuple[str, type[BNNSError]]]:
        return Turn, self._given  # a copy of the object has turns of its own


_states: weakref.WeakSet[_State] = weakref.WeakSet()
_adding = threading.RLock()  # what is collected meanwhile may make another


def _forget_other_threads() -> None:
    """In a forked child: of all threads only this one is left, and what the others held is free."""
    global _adding
    _adding = threading.RLock()
    for state in list(_states):
        if not state.lock._is_owned():  # type: ignore[attr-defined]
            state.lock, state.alone = threading.RLock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
