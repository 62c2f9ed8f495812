"""What the machine tells: power, heat, fans, memory, network, and when somebody last touched it."""
