"""Why diagnose says X: figures of the rounds, a rule for each cause, and the verdict."""
