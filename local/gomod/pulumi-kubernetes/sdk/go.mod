// In place of Pulumi's Go types for every kind of Kubernetes: 26 of the 31 MB of source that only the plugin compiles. It
// needs them for its components of YAML files and Helm charts alone, which no program of ours uses.
module github.com/pulumi/pulumi-kubernetes/sdk/v4

go 1.24.0

require github.com/pulumi/pulumi/sdk/v3 v3.215.0
