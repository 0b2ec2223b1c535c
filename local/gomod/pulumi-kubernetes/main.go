// Pulumi's Kubernetes plugin without its schema, which the engine does not ask for: the stock main package embeds it from
// a file that the module lacks.
package main

import (
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

func main() {
	provider.Serve("kubernetes", version.Version, []byte("{}"), []byte("{}"))
}
