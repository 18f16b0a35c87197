"""What lies outside the range that an adapter declares is said once, and changes nothing."""

from __future__ import annotations

import importlib
import warnings

import pytest

from cacheprefix import CacheprefixWarning, Session, versions
from cacheprefix.adapter import given_or_configured, supported

DECLARED = """Requires-Dist: a-framework[more]>=2.1,!=2.4.0,<3
Requires-Dist: absent>=9
Requires-Dist: a-client>=1,<2; extra == 'client'
Requires-Dist: another-system>=7; sys_platform == 'none'
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """``installed(name=version)`` beside an adapter that declares the above."""
    monkeypatch.setattr(versions, "_OUTSIDE", {})
    monkeypatch.setattr(versions, "_told", set())
    monkeypatch.syspath_prepend(tmp_path)

    def put(name, version, more=""):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}", "utf-8")

    put("cacheprefix-a", "0.1.0", DECLARED)
    put("another-system", "1.0")

    def all_of(**found):
        for name, version in found.items():
            put(name.replace("_", "-"), version)
        importlib.invalidate_caches()
        supported("cacheprefix-a")

    return all_of


def test_a_version_outside_is_said_once_a_process_and_in_every_report(installed):
    """Once as a warning; a client that only an extra asks for counts when it is there."""
    installed(a_framework="3.0.1", a_client="2.0")
    sessions = [Session(), Session()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for session in sessions:
            given_or_configured(session)
            given_or_configured(session)
    said = [str(one.message) for one in caught if one.category is CacheprefixWarning]
    assert [text.split(" lies")[0] for text in said] == ["a-framework 3.0.1", "a-client 2.0"]
    assert "cacheprefix-a is tested with (<3,!=2.4.0,>=2.1)" in said[0] or ">=2.1,!=2.4.0,<3" in said[0]
    assert [set(said) <= set(session.report().notes) for session in sessions] == [True, True]


def test_nothing_is_said_within_the_range(installed):
    """Nor of what is missing, or of a requirement for another system."""
    installed(a_framework="2.10", a_client="1.0rc1")
    session = Session()
    given_or_configured(session)
    assert session.report().notes == ()


def test_what_a_broken_removal_left_behind_keeps_no_adapter_from_being_loaded(installed, tmp_path):
    """Its folder says no version: there is nothing to compare."""
    (tmp_path / "a_framework-9.0.dist-info").mkdir()
    installed()
    session = Session()
    given_or_configured(session)
    assert session.report().notes == ()


@pytest.mark.parametrize(
    ("version", "ranges", "fits"),
    [
        ("1.2", ">=1.2,<2", True),
        ("1.10.3", ">=1.9", True),
        ("1.2.0", ">1.2", False),
        ("2.0.0rc1", "<2", False),
        ("1.0.0b261022", ">=1.0.0b261022,<2", True),
        ("1.82.7", ">=1.82,!=1.82.7", False),
        ("1.4.9", "~=1.4.2", True),
        ("1.5", "~=1.4.2", False),
        ("3.1", "==3.*", True),
        ("1!2.0", "", True),
    ],
)
def test_ranges_are_read_as_pip_reads_them(version, ranges, fits):
    """But that a pre-release counts as its release."""
    assert versions.within(version, ranges) is fits
