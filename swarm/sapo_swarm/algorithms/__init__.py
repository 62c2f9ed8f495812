"""Policy-gradient algorithms by name: how a group's rewards become advantages, and which update uses them.

Nothing here is called "sapo": that is the rule for what goes into the batch (sapo_swarm.sapo), and the name of another
paper's loss (Soft Adaptive Policy Optimization, which this project does not use).
"""
