package v2

import (
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

type object struct{ pulumi.CustomResourceState }

// RegisterResource declares an object of any kind.
func RegisterResource(
	ctx *pulumi.Context, apiVersion, kind, name string, inputs pulumi.Input, options ...pulumi.ResourceOption,
) (pulumi.CustomResource, error) {
	if !strings.Contains(apiVersion, "/") {
		apiVersion = "core/" + apiVersion
	}
	var made object
	err := ctx.RegisterResource("kubernetes:"+apiVersion+":"+kind, name, inputs, &made, options...)
	return &made, err
}
