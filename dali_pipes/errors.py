"""What can go wrong on the user's side. Scripts print these as one line; anything else is a bug and keeps its traceback."""


class DaliPipesError(Exception):
    """Base of every error a user can mend; its text names the thing, what breaks, and what to do instead."""


class ConfigError(DaliPipesError, ValueError):
    """An option, or a combination of options, that cannot work."""


class ManifestError(DaliPipesError, ValueError):
    """A folder, table or saved manifest that does not describe images."""


class PreparationError(DaliPipesError, RuntimeError):
    """A folder that cannot be prepared, or an archive that cannot be read."""


class BadSampleError(DaliPipesError, RuntimeError):
    """Image files that failed while a loader was running. `bad_samples` lists (id, path, reason)."""

    def __init__(self, message: str, bad_samples: list[tuple[int, str, str]]):
        super().__init__(message)
        self.bad_samples = bad_samples
