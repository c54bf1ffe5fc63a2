"""Sample with several worker processes: the scheduler, and the transport that sends it to the workers."""
