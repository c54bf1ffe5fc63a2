"""A YAML file as plain data, or one message that says why it is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlvr.errors import ConfigError


def read_yaml(path: Path) -> Any:
    """What a file of recipes, suites or settings holds.

    >>> read_yaml(Path("suite.yaml"))                                            # doctest: +SKIP
    [{'env': 'gsm8k', 'tasks': 200}]
    """
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
