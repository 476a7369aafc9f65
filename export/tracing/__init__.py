"""Trace what a model computes in one call or training step, with Jittor's trace format."""
