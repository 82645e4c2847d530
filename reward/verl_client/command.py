"""python -m reward.client: one pair by hand, by the way that every sample of a training takes."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Sequence

from reward.errors import RewardError
from reward.verl_client.scoring import STATUS_THINK_TAG, compute_score
from reward.verl_client.settings import ClientSettings

EXIT_OK, EXIT_NO_SCORE = 0, 1
_EPILOG = """\
examples:
  python -m reward.client --url http://127.0.0.1:8000 --prompt "What is 6 * 7?" --response "42"

  from reward.client import compute_score
  result = compute_score("gsm8k", solution_str="42", ground_truth="What is 6 * 7?", server_url="http://127.0.0.1:8000")
  result["score"]

verl's solution_str is the response, its ground_truth the prompt of the pair.

{settings}

exit codes: 0 scored, 1 no score, 2 usage
"""


def _parser() -> argparse.ArgumentParser:
    # `python -OO` drops docstrings.
    settings = inspect.cleandoc(ClientSettings.__doc__ or "").partition("\n\n")[2]
    settings = re.sub(r"^``(\w+)``", r"\1    ", settings, flags=re.MULTILINE).replace("``", "")
    parser = argparse.ArgumentParser(
        prog="python -m reward.client",
        description="Score one pair with the settings of the environment, without the reward log.",
        epilog=_EPILOG.format(settings=settings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", metavar="URL", help="http://HOST:PORT of the server (default: REWARD_SERVER_URL)")
    parser.add_argument("--token-file", metavar="FILE", help="its token (default: REWARD_SERVER_TOKEN_FILE)")
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument("--response", required=True, metavar="TEXT", help="its thinking part is not scored")
    parser.add_argument(
        "--deadline", type=float, default=10.0, metavar="SECONDS", help="of trying (default: %(default)g)"
    )
    parser.add_argument("--json", action="store_true", help="what verl gets, as one JSON object on stdout")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes: see --help."""
    arguments = _parser().parse_args(words)
    try:
        result = compute_score(
            "by hand",
            arguments.response,
            arguments.prompt,
            server_url=arguments.url,
            server_token_file=arguments.token_file,
            deadline=arguments.deadline,
            on_outage="raise",
            log_path="",  # no sample of a training, and no failure that would end one
        )
    except RewardError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_NO_SCORE
    if arguments.json:
        print(json.dumps(result))
    elif result["status"] == STATUS_THINK_TAG:
        print(f"score {result['score']:.6g}: the minimum, without a request, since the think tags do not pair up")
    else:
        clamped = f" (limited; the model gave {result['raw_score']:.6g})" if result["clamped"] else ""
        truncated = "; the pair was too long and was cut" if result["truncated"] else ""
        print(f"score {result['score']:.6g}{clamped} in {result['latency_s']:.3f} s{truncated}")
    return EXIT_OK
