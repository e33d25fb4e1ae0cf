"""Names of files and folders that a system or a program keeps beside the data."""

_MACOS = ("__macosx", "icon\r")  # its other files begin with a dot
_WINDOWS = ("thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "system volume information")
_NAS = ("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp")
_NAMES = {*_MACOS, *_WINDOWS, *_NAS, "lost+found", "__pycache__"}


def is_housekeeping(name: str) -> bool:
    """Whether a system or a program keeps a file or folder of this name, such as .DS_Store."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _NAMES


def is_housekeeping_member(path: str) -> bool:
    """Whether a member of an archive is such a file. Other names with a dot are its own data."""
    parts = path.split("/")
    return parts[-1].startswith("._") or any(part.lower() in _NAMES for part in parts)
