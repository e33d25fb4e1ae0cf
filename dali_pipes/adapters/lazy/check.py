"""Moved to compared.py."""

from dali_pipes.adapters.lazy.compared import Copy as Copy
from dali_pipes.adapters.lazy.compared import prints as prints
