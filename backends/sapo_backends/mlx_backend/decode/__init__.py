"""Generation: the loop over tokens and the sampler."""
