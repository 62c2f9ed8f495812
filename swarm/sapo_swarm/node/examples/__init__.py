"""Examples first, then practice: the trial of an untrained base, verified texts, and the phase that imitates them."""
