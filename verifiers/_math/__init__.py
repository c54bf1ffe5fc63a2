"""The mathematics behind `symbolic`: `read` parses, `value` computes, `judge` decides."""
