"""Programs on top of the loader, each in a separate folder or module that no other one imports."""
