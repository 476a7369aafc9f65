"""Tell rounding from errors by evaluating in float64."""
