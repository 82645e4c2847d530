"""The pages' tests use stand-ins that other folders of tests made: models, a tokenizer."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / folder) for folder in ("launch", "data_prep")]
