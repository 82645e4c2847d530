"""The packages of the interpreter that runs this; standard library only, Python 3.9+.

Alone in its file: `singularity.inspect` gives it to the Python of an image on standard input.
"""

import json
import re
import sys
from importlib import metadata


def installed_packages() -> "dict[str, str]":
    """Version of every distribution by its normalised name (PEP 503): of two, the one that an import finds."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # A folder of which an uninstall left a part has no name or no version; importing does not mind it.
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    json.dump({"python": sys.version.split()[0], "packages": installed_packages()}, sys.stdout)
    print()
