"""One round: plan, generate, score, exchange, update, record."""
