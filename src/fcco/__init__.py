"""fcco: finite-sum coupled compositional optimization, min_w (1/m) sum_i f_i(g_i(w)), in PyTorch."""

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fcco._api import *  # noqa: F403
else:
    # torch takes seconds to load, and `fcco --help` needs none of it: the names come when the first is asked for.
    def __getattr__(name):
        if name.startswith("_") and name != "__all__":
            raise AttributeError(f"module 'fcco' has no attribute {name!r}")
        import fcco._api as api

        if name == "__all__":
            return api.__all__
        if name in api.__all__:
            globals()[name] = getattr(api, name)
        if name in globals():  # also a package that was loaded with the others
            return globals()[name]
        raise AttributeError(f"module 'fcco' has no attribute {name!r}")

    def __dir__():
        import fcco._api as api

        return sorted({*globals(), *api.__all__})
