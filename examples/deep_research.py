"""Deep research in this repository's documentation: planner, parallel researchers with tools, writer.

python examples/deep_research.py --layout shared

The research itself is the script of the agent skill in ``skills/shared-prefix``; the notebook beside this file runs it
inside a running event loop. Unmodified, every member has a prompt of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _plain import Example, main

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "skills" / "shared-prefix" / "scripts"))

from research import Asking, Library, offline_script, research, session_for  # noqa: E402 - found by the line above

QUESTION = "What does cacheprefix promise never to break, and how is that tested?"
LIBRARY = Library(ROOT / "docs")


async def deep_research(example: Example) -> str:
    """One question, three researchers, one report."""
    asking = Asking(example.kind, example.model, example.asend)
    return await research(QUESTION, LIBRARY, asking, example.session, alone=not example.shared)


if __name__ == "__main__":
    main(deep_research, offline_script, prefix=session_for(LIBRARY).prefix)
