"""The hashes of the pinned files: write them down, or compare them with what an index serves now.

python constraints/lock.py write            after `make pins`
python constraints/lock.py verify           exit code 1 when a file of the same name has another hash
python constraints/lock.py check REPORT     the same for what `pip install --report REPORT` installed

uv looks the pins up without downloading anything. Locked are the files for CPython 3.11 on Linux (x86-64), and the
source where there is no wheel; elsewhere files of other names are counted as not compared. Mirrors serve the same
files, so no address is kept.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
LOCK = FOLDER / "hashes.txt"
HEAD = "# sha256 of the pinned files for CPython 3.11 on Linux (x86-64). Written by constraints/lock.py.\n"
OPTIONS = ("--no-deps", "--no-header", "--quiet", "--format", "pylock.toml", "--python-version", "3.11.9")


def served() -> dict[str, str]:
    """File name to sha256 of everything that the constraint files pin, as the index in use serves it."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is missing: pip install uv")
    found: dict[str, str] = {}
    for pins in sorted(FOLDER.glob("*.txt")):
        if pins == LOCK:
            continue
        shown = subprocess.run([uv, "pip", "compile", *OPTIONS, str(pins)], check=True, stdout=subprocess.PIPE).stdout
        for package in tomllib.loads(shown.decode())["packages"]:
            files = [file for file in package.get("wheels", ()) if _ours(_name(file))] or [package["sdist"]]
            found |= {_name(file): file["hashes"]["sha256"] for file in files}
    return found


def installed(report: Path) -> dict[str, str]:
    """File name to sha256 of everything that pip downloaded for an installation, by its report."""
    items = [item["download_info"] for item in json.loads(report.read_text("utf-8"))["install"]]
    return {_name(item): item["archive_info"]["hashes"]["sha256"] for item in items if "archive_info" in item}


def _name(file: dict[str, Any]) -> str:
    return unquote(Path(urlsplit(file["url"]).path).name)


def _ours(name: str) -> bool:
    platform = name.removesuffix(".whl").rpartition("-")[2]
    return platform == "any" or ("manylinux" in platform and platform.endswith("x86_64"))


def locked() -> dict[str, str]:
    """File name to sha256 as written down."""
    lines = [line for line in LOCK.read_text("utf-8").splitlines() if not line.startswith("#")]
    return dict(line.split(" sha256:") for line in lines)


def main(arguments: list[str]) -> int:
    """Write, verify or check."""
    if arguments == ["write"]:
        found = served()
        LOCK.write_text(HEAD + "".join(f"{name} sha256:{found[name]}\n" for name in sorted(found)), "utf-8")
        print(f"{len(found)} files locked")
        return 0
    if arguments == ["verify"]:
        known, found = locked(), served()
    elif len(arguments) == 2 and arguments[0] == "check":
        known, found = locked(), installed(Path(arguments[1]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    wrong = [name for name in found if known.get(name, found[name]) != found[name]]
    for name in wrong:
        print(f"{name}: sha256 {found[name]}, but {known[name]} is locked", file=sys.stderr)
    other = [name for name in found if name not in known]
    print(f"{len(found) - len(wrong) - len(other)} files as locked, {len(wrong)} not, {len(other)} not compared")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
