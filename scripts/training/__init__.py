"""Training of the network on rendered clips."""
