"""Read YAML files as plain data, with clear errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlvr.errors import ConfigError


def read_yaml(path: Path) -> Any:
    """Read a YAML file; raise ConfigError if it is invalid or unreadable."""
    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
