"""Read a YAML file as plain data, or raise one error that says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlvr.errors import ConfigError


def read_yaml(path: Path) -> Any:
    """The contents of a file of recipes, suites or settings.

    >>> read_yaml(Path("suite.yaml"))                                            # doctest: +SKIP
    [{'env': 'gsm8k', 'tasks': 200}]
    """
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
