"""What loaders are measured against: ceilings, and DALI without the plan."""
