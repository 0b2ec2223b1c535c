// Package fieldpath has what the plugin uses of it, as Kubernetes 1.36 has it.
package fieldpath

import "sigs.k8s.io/structured-merge-diff/v6/fieldpath"

type (
	Path = fieldpath.Path
	Set  = fieldpath.Set
)

var MakePath = fieldpath.MakePath
