"""The pages' tests use stand-ins that other folders of tests made: models."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "launch"))
