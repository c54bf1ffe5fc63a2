"""Communication between the training processes of a run."""
