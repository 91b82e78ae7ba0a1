"""kvproof: recipes for KV-cache offload, proven by evidence that anyone can replay."""

__version__ = "0.1.0"
