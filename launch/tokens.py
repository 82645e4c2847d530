"""How tokens and keys of known services look, so that none is written down or printed."""

import re

WANDB = "a W&B key"
TOKENS = (
    ("a Hugging Face token", re.compile(r"\bhf_([A-Za-z0-9]{16,}|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{10,})")),
    (WANDB, re.compile(r"\bwandb_v1_\w{16,}|(?<![0-9A-Za-z/_.-])[0-9a-f]{40}(?![0-9A-Za-z/_.-])")),
    ("a GitHub token", re.compile(r"\bgh[opsur]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}")),
    ("a GitLab token", re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}")),
    ("an API key", re.compile(r"\bsk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{12,}")),
    ("an AWS key", re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b")),
    ("a Slack token", re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{10,}")),
    ("a Google key", re.compile(r"\bAIza[A-Za-z0-9_-]{35}")),
    ("a JSON web token", re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}")),
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?-----END [A-Z ]*KEY-----|.*)")),
    ("a password in a URL", re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s:@]{4,}@")),
)  # fmt: skip


def looks_secret(text: str) -> bool:
    """Whether a text must not be shown in a message."""
    return any(pattern.search(text) for _, pattern in TOKENS)


def hide(text: str) -> str:
    """`text` with a mark in place of everything that looks like a secret."""
    for what, pattern in TOKENS:
        text = pattern.sub(f"<{what}>", text)
    return text
