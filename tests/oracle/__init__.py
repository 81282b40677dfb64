"""The executable definition of the model that the golden data and the engine are measured against."""
