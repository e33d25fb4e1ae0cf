"""The A/B benchmark of loaders: dali-pipes benchmark, migrate and compare. See docs/method.md."""
