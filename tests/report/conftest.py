"""Makes the log generator of the audit tests importable by its own name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "audit"))
