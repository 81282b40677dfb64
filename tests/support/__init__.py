"""Helpers shared by the tests: file builders, block formats, golden data, comparisons."""
