"""Reference loaders for measurements: upper bounds, and DALI without the plan."""
