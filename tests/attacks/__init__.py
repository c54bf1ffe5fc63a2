"""Programs that try to be paid without doing the work, or to do harm. They are only ever run inside the docker sandbox."""
