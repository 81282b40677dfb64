"""The HTTP server: four dialects in front, one engine with live sessions behind."""
