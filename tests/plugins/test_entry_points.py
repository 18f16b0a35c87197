"""Plugins of installed distributions are found by entry point, lazily, and a broken one is skipped."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import cacheprefix.plugins
from cacheprefix.errors import SetupError
from cacheprefix.plugins import VARIABLE, CacheprefixPluginWarning, Plugins

COUNT = {"text": "word", "model": "m"}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install one-module distributions for this test: ``installed(name, source)``."""
    seen = []

    def install(name, source):
        module = f"entry_point_of_{name}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source), "utf-8")
        info = tmp_path / f"dist_{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 1.5\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[cacheprefix]\n{name} = {module}\n", "utf-8")
        seen.append(name)
        monkeypatch.setenv(VARIABLE, ",".join(seen))

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(cacheprefix.plugins, "_named", set())
    cacheprefix.plugins._entry_points.cache_clear()
    yield install
    cacheprefix.plugins._entry_points.cache_clear()
    for name in seen:
        sys.modules.pop(f"entry_point_of_{name}", None)


def test_an_installed_plugin_is_found(installed):
    """A distribution needs nothing but its entry point."""
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    plugins = Plugins()
    assert plugins.call_first("count_tokens", **COUNT) == 7
    assert [(info.name, info.origin, info.distribution) for info in plugins.loaded] == [
        ("seven", "entry point", "dist-seven 1.5")
    ]


def test_installed_plugins_are_loaded_at_the_first_call(installed):
    """Making a session imports nobody's code."""
    installed("lazy", "def cacheprefix_count_tokens():\n    return 7")
    plugins = Plugins()
    assert "entry_point_of_lazy" not in sys.modules
    plugins.call_first("count_tokens", **COUNT)
    assert "entry_point_of_lazy" in sys.modules


def test_the_applications_plugin_overrides_an_installed_one(installed):
    """Although installed plugins are found later, they stand below the application's own."""

    class Eight:
        def cacheprefix_count_tokens(self):
            return 8

    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    assert Plugins(plugins=[Eight()]).call_first("count_tokens", **COUNT) == 8


def test_an_installed_plugin_overrides_a_builtin(installed):
    """So that a package can change the default for everyone who installs it."""

    class One:
        def cacheprefix_count_tokens(self):
            return 1

    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    assert Plugins([("one", One())]).call_first("count_tokens", **COUNT) == 7


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("raise ZeroDivisionError('at import')", "ZeroDivisionError: at import"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("def cacheprefix_frieze(): pass", "cacheprefix_frieze"),
    ],
)
def test_a_broken_plugin_is_named_and_skipped(installed, source, says):
    """The others are loaded, and doctor can say what is wrong."""
    installed("broken", source)
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    plugins = Plugins()
    named = f"'broken' of dist-broken 1.5 was not loaded: .*{says}"
    with pytest.warns(CacheprefixPluginWarning, match=named):
        assert plugins.call_first("count_tokens", **COUNT) == 7
    assert plugins.failures == {"broken": 1}
    assert says in plugins.loaded[0].problem


def test_a_broken_plugin_is_named_once_a_process(installed):
    """Many sessions do not say the same thing many times."""
    installed("broken", "raise ZeroDivisionError")
    with pytest.warns(CacheprefixPluginWarning) as seen:
        for _ in range(3):
            Plugins().call_first("count_tokens", **COUNT)
    assert len(seen) == 1


def test_an_empty_variable_loads_no_installed_plugin(installed, monkeypatch):
    """The switch for whoever wants none."""
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    monkeypatch.setenv(VARIABLE, "")
    assert Plugins().call_first("count_tokens", **COUNT) is None


def test_the_variable_selects_by_name(installed, monkeypatch):
    """Only what it lists is loaded."""
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    installed("eight", "def cacheprefix_count_tokens():\n    return 8")
    monkeypatch.setenv(VARIABLE, " seven ,")
    assert [info.name for info in Plugins().loaded] == ["seven"]


def test_a_selected_plugin_that_is_not_there_is_named(installed, monkeypatch):
    """A misspelt name is not silently nothing."""
    monkeypatch.setenv(VARIABLE, "sevn")
    with pytest.warns(CacheprefixPluginWarning, match=f"'sevn' was not loaded: .*{VARIABLE}"):
        assert Plugins().loaded[0].problem


def test_a_plugin_that_asks_for_hooks_while_it_is_imported_does_not_loop(installed):
    """It sees what is loaded so far."""
    installed(
        "eager",
        """
        from cacheprefix.plugins import Plugins
        before = Plugins().call_first("count_tokens", text="", model="")

        def cacheprefix_count_tokens():
            return 7
        """,
    )
    assert Plugins().call_first("count_tokens", **COUNT) == 7


def test_one_name_from_two_distributions_is_reported(installed, tmp_path):
    """The first is kept, the second named."""
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text("[cacheprefix]\nseven = entry_point_of_seven\n", "utf-8")
    plugins = Plugins()
    with pytest.warns(CacheprefixPluginWarning, match="'seven'"):
        assert plugins.call_first("count_tokens", **COUNT) == 7


def test_of_a_distribution_in_two_places_the_first_on_the_path_counts(installed, tmp_path, monkeypatch):
    """An older one behind it is not installed, nor are its plugins."""
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    newer = tmp_path / "before" / "dist_seven-2.0.dist-info"
    newer.mkdir(parents=True)
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: Dist_Seven\nVersion: 2.0\n", "utf-8")
    monkeypatch.syspath_prepend(str(newer.parent))
    monkeypatch.delenv(VARIABLE)
    assert "seven" not in [point.name for point in cacheprefix.plugins._entry_points()]


def test_what_is_left_of_a_removed_distribution_has_no_plugins(installed, tmp_path, monkeypatch):
    """Its folder without its name stops nobody else's plugin."""
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    left = tmp_path / "gone-1.0.dist-info"
    left.mkdir()
    (left / "entry_points.txt").write_text("[cacheprefix]\ngone = entry_point_of_gone\n", "utf-8")
    monkeypatch.delenv(VARIABLE)
    found = [point.name for point in cacheprefix.plugins._entry_points()]
    assert "seven" in found
    assert "gone" not in found


def test_set_up_errors_of_the_application_are_raised(installed):
    """Only what others installed is skipped; the application's own mistake is an error."""
    installed("seven", "def cacheprefix_count_tokens():\n    return 7")
    with pytest.raises(SetupError):
        Plugins(plugins=[object()])


def test_importing_the_plugin_system_scans_nothing():
    """The scan is left to the first hook call, so importing stays cheap."""
    code = "import sys, cacheprefix.plugins; print('importlib.metadata' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
