"""Write a training run or an evaluation as one HTML file."""
