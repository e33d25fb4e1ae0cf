"""The search for a loader's fastest settings on this machine, for these images, within limits."""
