"""Recipes: training runs as YAML files, addressed by name."""
