"""A reward server without a model: the score is always 0.5. Takes the options of reward.server."""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    token = ""

    def _answer(self, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer({"status": "ok", "ready": True})

    def do_POST(self) -> None:
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send_error(401)
            return
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer({"scores": [0.5] * len(asked["items"])} if "items" in asked else {"score": 0.5})

    def log_message(self, *words: object) -> None:
        """No line for each request."""


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token-file", type=Path)
    args, _ = parser.parse_known_args()
    if args.token_file:
        _Handler.token = args.token_file.read_text().strip()
    ThreadingHTTPServer((args.host, args.port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
