"""Times as Slurm writes them."""


def time_seconds(text: str) -> int:
    """Seconds of a Slurm time: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S. 0 is no limit."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(parts) == 1:
        return parts[0] * 60
    if len(parts) == 2:
        return parts[0] * 60 + parts[1]
    return (parts[0] * 60 + parts[1]) * 60 + parts[2]
