"""The ``cacheprefix`` command. Without the extra ``cli`` it says how to install it.

Each command is a module ``cacheprefix/cli/commands/NAME.py`` with ``register(app)``, importing what it needs when it
runs; plugins add theirs by the ``commands`` hook.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cacheprefix.errors import CacheprefixError, MissingExtraError, plain

if TYPE_CHECKING:
    import typer

__all__ = ["application", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 2 for a wrong use or a set-up error, told in a line."""
    with warnings.catch_warnings():
        # A command's user wants to know what went wrong and not in which line of ours.
        warnings.showwarning = lambda message, *_, **__: _say(message)
        try:
            app = application()
            app(args=None if arguments is None else list(arguments), prog_name="cacheprefix")
        except CacheprefixError as error:
            _say(error)
            return 2
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _say(what: Exception | str) -> None:
    print(f"cacheprefix: {plain(' '.join(str(what).split()))}", file=sys.stderr)


def application() -> typer.Typer:
    """The typer application with all commands of cacheprefix and of plugins.

    Raises:
        MissingExtraError: typer or rich is not installed.
    """
    for package in ("typer", "rich", "packaging"):
        if find_spec(package) is None:
            raise MissingExtraError("the command line", "cli", package)
    import typer

    from cacheprefix.cli import commands
    from cacheprefix.plugins import Plugins

    app = typer.Typer(
        name="cacheprefix",
        help="Keep the shared beginning of agents' prompts in the provider's cache.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def root() -> None:
        """Keep the shared beginning of agents' prompts in the provider's cache."""

    for module in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{module.name}").register(app)
    Plugins.with_builtins().call_all("commands", cli=app)
    return app
