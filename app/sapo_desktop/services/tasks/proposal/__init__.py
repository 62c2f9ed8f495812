"""From a file of rows to a proposed task: which columns, which options, how it is judged. Nothing is stored or run."""
