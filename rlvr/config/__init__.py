"""The configuration of a run: its schema, overrides from the command line, YAML files."""
