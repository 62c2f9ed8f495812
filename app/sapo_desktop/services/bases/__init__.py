"""Models to start from: bundled, on this disk, or on the hub; and what each needs of this machine before anything starts."""
