"""Bytes for people."""


def size(count: float) -> str:
    """Bytes as the largest binary unit that leaves at least 1 of it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if count >= 100 or unit == "B" else f"{count:,.1f} {unit}"
