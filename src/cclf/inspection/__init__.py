"""Curiosity of a trained agent, as numbers and pictures: what every algorithm returns, and what the
algorithms share."""
