"""The algorithms, one file each: an advantage and a loss, composed of the functions in `functions`."""
