"""How declared verifiers judge: a text against a row, without running anything of either. In the scorer worker only."""
