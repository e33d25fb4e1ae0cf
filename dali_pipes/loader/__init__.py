"""The loader that a user iterates over: epochs, resume, bad samples, targets and mixing."""
