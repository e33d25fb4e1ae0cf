"""What would change it: advice, and the gain that is calculated for each fix."""
