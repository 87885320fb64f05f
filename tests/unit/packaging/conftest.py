"""The build of the packages is no part of the library: it is imported from where it stands."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "packaging"))
