"""Whether there is a browser to test with."""

import shutil


def missing():
    """What there is not, as a reason to skip; empty if all is there."""
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "selenium is not installed: pip install '.[browser]'"
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            return f"there is no {name} on this machine"
    return ""
