"""Policy-gradient algorithms by name: how a group's rewards become advantages, and which update uses them.

With one epoch and one minibatch (the defaults) every batch is used for one step, by the policy that generated its local
part: the importance ratio is 1 and the clip never acts, whichever algorithm is chosen. The algorithms then differ in
their advantages and in how token losses are averaged. External completions have no old log-probability, so their ratio is
1 too: of external groups trained on their positive advantages alone (external_advantages = "positive") the update is
advantage-weighted likelihood. Ratio and clip become real with epochs or minibatches above 1.

Nothing here is called "sapo": that is the rule for what goes into the batch (sapo_swarm.sapo), and the name of another
paper's loss (Soft Adaptive Policy Optimization, which this project does not use).
"""
