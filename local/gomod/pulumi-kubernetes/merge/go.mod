// In place of an older major version, which only the plugin compiles: with it, the plugin would need its own Kubernetes
// modules beside those that the node's programs have compiled already, a fifth of all that a first `make up` compiles.
module sigs.k8s.io/structured-merge-diff/v4

go 1.25.0

require sigs.k8s.io/structured-merge-diff/v6 v6.3.3
