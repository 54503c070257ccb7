"""The name under which the project is installed, and the lines that tell users what to install.

The import and the command are `rpl`; on the Python package index that name belongs to another project.
"""

from __future__ import annotations

DISTRIBUTION = "retrieval-program-learning"


def install_line(extra: str) -> str:
    """Returns the command that installs one of the project's extras.

    >>> install_line("serve")
    "pip install 'retrieval-program-learning[serve]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"
