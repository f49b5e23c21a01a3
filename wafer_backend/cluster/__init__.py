"""The roles of a cluster (coordinator, MemoryX, SwarmX, wafers, activation worker) and a step."""
