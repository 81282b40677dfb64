"""The version of ds4: read by the build for the wheel and for ``ds4_version()``."""

__version__ = "0.1.0"
