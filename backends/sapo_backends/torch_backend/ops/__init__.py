"""Operations on packed tokens, with hand-written gradients: norms, rotary embeddings, LoRA, attention, log-probs."""
