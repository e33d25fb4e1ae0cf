"""Why a GPU waits: what the model could do, what the loader could do, what they do together, and what would change that."""
