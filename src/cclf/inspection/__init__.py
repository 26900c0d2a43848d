"""What a trained agent is curious about, as plain numbers and pictures: what every room hands over,
and what rooms share."""
