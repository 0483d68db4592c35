"""Results in metres: what tells the scale of a reconstruction, and what makes a result follow it."""
