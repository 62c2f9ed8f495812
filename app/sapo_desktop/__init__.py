"""The app: the dashboard, the command line and their settings."""

__version__: str


def __getattr__(name: str) -> str:
    """`__version__`, looked up on first use: importlib.metadata costs 50 ms, and the first frame must not wait for it."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sapo-desktop")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "0+source"
