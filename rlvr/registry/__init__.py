"""The registry: finds and builds plugins by name, including those of other packages."""
