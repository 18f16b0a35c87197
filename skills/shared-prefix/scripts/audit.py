"""Find a project's request logs and say what they lose to prompt-cache misses.

python audit.py path/to/project --html report.html
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

SUFFIXES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
SKIPPED = {".git", ".mypy_cache", ".tox", ".venv", "node_modules", "site-packages", "__pycache__"}
SIGNS = (b'"messages"', b'"request"', b'"resourceSpans"', b'"cachedContent"', b'"gen_ai', b'"inputs"', b'"input"')
_HEAD = 65_536


def looks_like_a_log(path: Path) -> bool:
    """Whether the beginning of a file holds what requests have and configuration files have not."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            head = file.read(_HEAD)
    except (OSError, EOFError):
        return False
    signs = [sign for sign in SIGNS if sign in head]
    return bool(signs) and (b'"model"' in head or b'"role"' in head or b'"gen_ai' in head)


def logs_below(folder: Path) -> list[Path]:
    """Request logs below a folder, in order of their names."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(SUFFIXES) and not SKIPPED & set(path.parts) and path.is_file() and looks_like_a_log(path)
    ]


def main(arguments: list[str]) -> int:
    """Audit the logs at or below the first argument; the others go on to ``cacheprefix audit``."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(__doc__)
        return 0 if arguments else 2
    place = Path(arguments[0])
    logs = logs_below(place) if place.is_dir() else [place] if place.exists() else []
    if not logs:
        print(f"no request log at {place}", file=sys.stderr)
        return 2
    for log in logs:
        print(f"reading {log}", file=sys.stderr)
    command = [sys.executable, "-m", "cacheprefix", "audit", *map(str, logs), *arguments[1:]]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
