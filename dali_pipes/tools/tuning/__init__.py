"""The search for a loader's fastest settings, for this machine and these images, within limits."""
