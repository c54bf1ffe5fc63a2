"""A run as one checked file: the configuration of a recipe, overrides from the command line, YAML."""
