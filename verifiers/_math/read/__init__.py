"""Parse the text of an answer to a tree."""
