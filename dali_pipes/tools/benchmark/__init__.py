"""The A/B benchmark of loaders."""
