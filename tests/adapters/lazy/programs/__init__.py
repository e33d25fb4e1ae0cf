"""Programs that read pictures, as people write them and as nobody should, and how they are run."""
