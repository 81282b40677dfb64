"""The side of the network: four dialects of HTTP in front of an engine."""

from .app import Application, create_app
from .settings import Settings

__all__ = ["Application", "Settings", "create_app"]
