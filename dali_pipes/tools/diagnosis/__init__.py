"""Why training waits: measures the model and the loader alone and together, and predicts the gain
of fixes.
"""
