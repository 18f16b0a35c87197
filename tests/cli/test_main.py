"""The command ``cacheprefix`` as a shell sees it: exit codes, one line an error, no colours in a pipe."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from cacheprefix import cli
from cacheprefix._version import __version__
from cacheprefix.errors import SetupError
from cacheprefix.plugins import Plugins


def _run(*arguments, before=""):
    code = f"import sys\n{before}\nfrom cacheprefix.cli import main\nsys.exit(main({list(arguments)!r}))"
    return _python("-c", code)


def _python(*arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def command(monkeypatch):
    """Give ``cacheprefix`` one more command for this test: ``command(function)`` runs it."""

    def run(function):
        class Plugin:
            def cacheprefix_commands(self, cli):
                cli.command("mine")(function)

        made = Plugins(plugins=[Plugin()], discover=False)
        monkeypatch.setattr(Plugins, "with_builtins", lambda: made)
        return cli.main(["mine"])

    return run


def test_version_prints_the_version(capsys):
    """And nothing else."""
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"cacheprefix {__version__}\n"


def test_python_m_is_the_command():
    """``python -m cacheprefix`` works where the script is not on the path."""
    shown = _python("-m", "cacheprefix", "version")
    assert shown.stdout == f"cacheprefix {__version__}\n"


@pytest.mark.parametrize("package", ["typer", "rich", "packaging"])
def test_without_the_extra_the_install_line_is_printed(package):
    """One line, exit code 2, no traceback."""
    shown = _run("version", before=f"sys.modules[{package!r}] = None")
    assert shown.returncode == 2
    assert shown.stdout == ""
    what = f"cacheprefix: the command line needs an extra (no module {package!r})"
    assert shown.stderr == f'{what}: pip install "cacheprefix[cli]"\n'


def test_an_unknown_command_is_a_usage_error(capsys):
    """Exit code 2, as shells expect."""
    assert cli.main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err


def test_a_plugin_adds_a_command(command, capsys):
    """By the ``commands`` hook."""

    def mine():
        print("here")

    assert command(mine) == 0
    assert capsys.readouterr().out == "here\n"


def test_an_error_of_ours_is_one_line(command, capsys):
    """However many lines its message has; exit code 2 and no traceback."""

    def mine():
        raise SetupError("first\nsecond")

    assert command(mine) == 2
    assert capsys.readouterr().err == "cacheprefix: first second\n"


def test_an_error_that_is_not_ours_is_shown_in_full(command):
    """A bug is not hidden behind a line."""

    def mine():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command(mine)


def test_a_commands_exit_code_is_the_programs(command):
    """A command that found something says so by its code."""

    def mine():
        raise typer.Exit(code=3)

    assert command(mine) == 3


@pytest.mark.slow
def test_a_pipe_gets_no_colours():
    """Help and errors are plain text when nobody looks at a terminal."""
    for arguments in (["--help"], ["no-such-command"], ["doctor"]):
        shown = _run(*arguments)
        assert "\x1b" not in shown.stdout + shown.stderr


def test_help_loads_no_server_and_no_framework():
    """Commands import what they need when they run."""
    heavy = ("starlette", "uvicorn", "jinja2", "tiktoken", "genai_prices", "langgraph", "langchain_core")
    look = f"print('loaded:', [m for m in {heavy} if m in sys.modules])"
    shown = _python("-c", f"import sys\nfrom cacheprefix.cli import main\nmain(['--help'])\n{look}")
    assert "loaded: []" in shown.stdout
