"""The hashes of the pinned files: write them down, or compare them with what an index serves now.

python constraints/lock.py write     after `make pins`
python constraints/lock.py verify    exit code 1 when a file of the same name has another hash

pip resolves the pins without installing anything and reports the hash of each file it would take. The files are those
of CPython 3.11 on Linux (x86-64); elsewhere files of other names are counted as not compared. Mirrors serve the same
files, so no address is kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

FOLDER = Path(__file__).parent
LOCK = FOLDER / "hashes.txt"
HEAD = "# sha256 of the pinned files for CPython 3.11 on Linux (x86-64). Written by constraints/lock.py.\n"


def served() -> dict[str, str]:
    """File name to sha256 of everything that the constraint files pin, as the index in use serves it."""
    found: dict[str, str] = {}
    for pins in sorted(FOLDER.glob("*.txt")):
        if pins == LOCK:
            continue
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        report = subprocess.run([*command, "--report", "-", "-r", str(pins)], check=True, stdout=subprocess.PIPE).stdout
        for item in json.loads(report)["install"]:
            info = item["download_info"]
            name = unquote(Path(urlsplit(info["url"]).path).name)
            found[name] = info["archive_info"]["hashes"]["sha256"]
    return found


def locked() -> dict[str, str]:
    """File name to sha256 as written down."""
    lines = [line for line in LOCK.read_text("utf-8").splitlines() if not line.startswith("#")]
    return dict(line.split(" sha256:") for line in lines)


def main(arguments: list[str]) -> int:
    """Write or verify."""
    if arguments == ["write"]:
        found = served()
        LOCK.write_text(HEAD + "".join(f"{name} sha256:{found[name]}\n" for name in sorted(found)), "utf-8")
        print(f"{len(found)} files locked")
        return 0
    if arguments != ["verify"]:
        print(__doc__, file=sys.stderr)
        return 2
    known, found = locked(), served()
    wrong = [name for name in found if known.get(name, found[name]) != found[name]]
    for name in wrong:
        print(f"{name}: sha256 {found[name]}, but {known[name]} is locked", file=sys.stderr)
    other = [name for name in found if name not in known]
    print(f"{len(found) - len(wrong) - len(other)} files as locked, {len(wrong)} not, {len(other)} not compared")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
