"""How weights and activations reach a wafer and leave it while it runs a module."""
