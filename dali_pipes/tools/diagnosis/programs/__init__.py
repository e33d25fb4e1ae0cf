"""The programs that are diagnosed: a file for each kind of loader."""
