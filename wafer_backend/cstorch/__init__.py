"""The top of the cstorch API: `compile`, small functions, names of imports."""
