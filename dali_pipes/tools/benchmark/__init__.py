"""The A/B benchmark of loaders: dali-pipes benchmark and compare. See docs/method.md."""
