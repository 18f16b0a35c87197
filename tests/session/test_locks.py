"""Locks where another library has put its own in place of the interpreter's."""

import importlib.util
import os
import threading


def test_locks_work_where_gevent_has_patched_threading(monkeypatch):
    """Its re-entrant lock is written in Python and has fields of its own: no session could be made."""
    monkeypatch.setattr(threading, "RLock", threading._PyRLock)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    found = importlib.util.find_spec("cacheprefix.locks")
    locks = importlib.util.module_from_spec(found)
    found.loader.exec_module(locks)
    lock = locks.Lock()
    with lock, lock:
        assert lock.mine
    lock.renew()
    assert not lock.mine
    assert not lock.torn
