"""Tests that each backend has to pass, for those who write one."""

from ._contract import BackendContract

__all__ = ["BackendContract"]
