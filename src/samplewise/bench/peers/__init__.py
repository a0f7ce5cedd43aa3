"""Other libraries' losses: what they are called, where they come from, and how each is run on a workload."""
