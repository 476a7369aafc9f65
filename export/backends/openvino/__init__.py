"""OpenVINO, with the layers that it executes observed."""
