"""Writes "What changes in your application" into each adapter's page: ``python -m tests.transparent``."""

from __future__ import annotations

from tests.transparent.pages import PAGES, driven, write

if __name__ == "__main__":
    for framework in driven():
        print(f"{PAGES[framework]}: {'written' if write(framework) else 'as it was'}")
