"""The command line program `ds4`."""
