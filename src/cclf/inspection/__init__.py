"""What a trained agent is curious about, as plain numbers and pictures: what every algorithm returns,
and what algorithms share."""
