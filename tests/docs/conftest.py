"""The pages' tests use stand-ins that other folders of tests made: models, images."""

import sys
from pathlib import Path

for _folder in ("launch", "singularity"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / _folder))
