"""How stages run: the contract, the runner, the executor, and what a user sees meanwhile."""
