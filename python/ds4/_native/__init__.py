"""The native floor: thin Cython wrappers around the core's C interface, one module per noun.

Only the modules of the next floor (`ds4.gguf`, `ds4.library`, `ds4.model`, `ds4.sampling`, `ds4.session`) import from
here. Objects of this package do no argument conversion beyond what keeps memory safe; the public classes that contain
them do.
"""

from importlib.util import find_spec

# Checked once, here, so that a missing build is told in a sentence instead of by some name that cannot be imported.
if find_spec(f"{__name__}._core") is None:
    raise ImportError(
        f"the native library of ds4 is not built: {__path__[0]} has no compiled modules. Install the package "
        "(pip install ds4, or pip install . in a checkout) instead of running from the source tree"
    )
