"""Programs on top of the loader, each in a folder or a module of its own that no other one imports."""
