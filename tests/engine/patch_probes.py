"""One probe for each patch, run in a process where verl has loaded the CPU backend.

    python patch_probes.py POLICY_DIR NAME...     prints {"name": null or "why it failed"}

The patches change torch for good, so they are probed outside of pytest; the tests read the answers. A rehearsal's
environment has no pytest.
"""

from __future__ import annotations

import json
import sys
import traceback

import probes_megatron
import probes_rollout
import probes_torch


def main():
    probes = {**vars(probes_torch), **vars(probes_megatron), **vars(probes_rollout)}
    answers = {}
    for name in sys.argv[2:]:
        try:
            probes[name]()
            answers[name] = None
        except Exception:  # noqa: BLE001  # each probe reports its own failure
            answers[name] = traceback.format_exc()
    print("ANSWERS " + json.dumps(answers))


if __name__ == "__main__":
    main()
