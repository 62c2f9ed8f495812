"""Models to start from: bundled, on this disk, or on the hub; what one asks of this machine before anything starts."""
