"""What a capture can record besides module inputs and outputs: gradients, parameters, ATen calls, collectives, non-finite values."""
