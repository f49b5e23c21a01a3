"""The quickstart corpus and the invented work that is registered in it."""
