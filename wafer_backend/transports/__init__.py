"""How the roles of a cluster talk: by calls, over a simulated network, or between processes."""
