"""Escape text from models and files for each target that Filch writes."""
