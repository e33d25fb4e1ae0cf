"""Charts and pages that the tools leave: colors, letters, pictures."""
