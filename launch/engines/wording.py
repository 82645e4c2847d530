"""What is said about an override in more than one place."""

from launch.finding import Finding, error

# Linux: MAX_ARG_STRLEN, without the closing NUL.
MAX_ARGUMENT_BYTES = 131_071


def shown(text: str, limit: int = 80) -> str:
    """A value as the user wrote it, printable and short enough for a line."""
    text = text if len(text) <= limit else f"{text[: limit - 3]}..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def sweep(text: str) -> Finding:
    """An override with several values, for as many runs."""
    return error(
        "override",
        f"{shown(text)!r} is a sweep, and a job is one run",
        "quote a value that has a comma: KEY='a,b'; a list is [a,b]",
    )


def too_long(text: str) -> Finding:
    """An override that no program can be given."""
    return error(
        "override",
        f"the override {shown(text)!r} has {len(text.encode(errors='replace'))} bytes",
        f"Linux gives a program at most {MAX_ARGUMENT_BYTES} bytes in one argument",
    )
