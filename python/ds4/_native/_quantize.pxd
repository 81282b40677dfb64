# No other module of the package uses this one from Cython.
