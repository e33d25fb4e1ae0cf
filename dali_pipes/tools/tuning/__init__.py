"""The search for a loader's own settings: which are fastest on this machine, for these images, within what may be used."""
