"""What a capture can record besides module inputs and outputs, such as gradients, parameters and ATen calls."""
