"""The dashboard in lines, for screen readers: the same state told in sentences, news appended, nothing ever repainted."""
