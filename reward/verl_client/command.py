"""python -m reward.client: one pair by hand, by the way that every sample of a training takes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from reward.command_line import CommandParser, fail, filled
from reward.errors import RewardError
from reward.verl_client.scoring import STATUS_THINK_TAG, compute_score
from reward.verl_client.settings import ClientSettings

EXIT_OK, EXIT_NO_SCORE = 0, 1
_NOTES = """\
In Python:

  from reward.client import compute_score
  result = compute_score(
      "gsm8k", solution_str="42", ground_truth="What is 6 * 7?",
      server_url="http://127.0.0.1:8000",
  )
  result["score"]

verl's solution_str is the response, its ground_truth the prompt of the pair.

settings: each comes from the keyword argument of compute_score (server_url; verl's \
custom_reward_function.reward_kwargs), else from the environment, else it has its default:

{settings}
"""
_EXAMPLE = """\
python -m reward.client --url http://127.0.0.1:8000 \\
    --prompt "What is 6 * 7?" --response 42"""


def _parser() -> CommandParser:
    # `python -OO` drops docstrings.
    rows = re.findall(r"^ *``\w+`` +(\w+) +(.+)$", ClientSettings.__doc__ or "", re.MULTILINE)
    settings = "\n".join(f"  {name:<26}{default}" for name, default in rows)
    parser = CommandParser(
        "reward.client",
        "Score one pair with the settings of the environment, without the reward log.",
        notes=_NOTES.format(settings=settings),
        examples=[_EXAMPLE],
        exit_codes={0: "scored", 1: "no score", 2: "usage"},
    )
    parser.add_argument("--url", metavar="URL", help="http://HOST:PORT of the server [REWARD_SERVER_URL]")
    parser.add_argument(
        "--token-file", type=filled, metavar="FILE", help="file with its token [REWARD_SERVER_TOKEN_FILE]"
    )
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="what was asked; verl's ground_truth")
    parser.add_argument("--response", required=True, metavar="TEXT", help="its thinking part is not scored")
    parser.add_argument(
        "--deadline", type=float, default=10.0, metavar="SECONDS", help="how long to try [%(default)g]"
    )
    parser.add_argument("--json", action="store_true", help="print what verl gets as JSON")
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
        return fail(str(error), as_json=arguments.json, code=EXIT_NO_SCORE)
    if arguments.json:
        print(json.dumps(result))
    elif result["status"] == STATUS_THINK_TAG:
        print(f"score {result['score']:.6g}: the minimum, without a request, since the think tags do not pair up")
    else:
        clamped = f" (limited; the model gave {result['raw_score']:.6g})" if result["clamped"] else ""
        truncated = "; the pair was too long and was cut" if result["truncated"] else ""
        print(f"score {result['score']:.6g}{clamped} in {result['latency_s']:.3f} s{truncated}")
    return EXIT_OK
