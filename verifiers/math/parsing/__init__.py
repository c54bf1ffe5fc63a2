"""Parse the text of an answer into a syntax tree."""
