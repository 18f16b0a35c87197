"""Coverage-guided fuzzing with atheris: bytes as request bodies and as logs.

``make fuzz`` runs it for a minute; options of libFuzzer are passed on.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["cacheprefix.prompt", "cacheprefix.audit", "cacheprefix.profiles"]):
    sys.path.insert(0, str(Path(__file__).parent))
    from checks import check_body, check_log
    from damage import BODIES, USAGES, damaged, log_bytes, torn

APIS = sorted(BODIES)
LOG = Path(tempfile.mkdtemp(prefix="fuzz-")) / "log.jsonl"


def one(data: bytes) -> None:
    """One input: its first byte says what the rest is."""
    bytes_of = atheris.FuzzedDataProvider(data)
    api = APIS[bytes_of.ConsumeIntInRange(0, len(APIS) - 1)]
    what = bytes_of.ConsumeIntInRange(0, 3)
    if what == 0:
        check_body(damaged(BODIES[api], bytes_of.ConsumeInt(8)), api, USAGES[api])
        return
    if what == 1:
        LOG.write_bytes(torn(log_bytes(), bytes_of.ConsumeInt(8)))
        check_log(LOG)
        return
    rest = bytes_of.ConsumeBytes(bytes_of.remaining_bytes())
    if what == 2:
        LOG.write_bytes(rest)
        check_log(LOG)
        return
    try:
        body = json.loads(rest)
    except (ValueError, RecursionError):
        return
    if isinstance(body, dict):
        check_body(body, api, body.get("usage"))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
