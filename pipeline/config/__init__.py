"""The config of `prep`: all sections, and the strict YAML they are read from."""
