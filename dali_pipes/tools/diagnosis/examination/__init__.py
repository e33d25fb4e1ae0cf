"""The examination of a program from its first batches to the diagnosis."""
