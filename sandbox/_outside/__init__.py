"""What runs in our process: the engine, containers, channels and pools."""
